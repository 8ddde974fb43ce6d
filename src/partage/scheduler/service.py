"""The extender as a server: watches, the thread that makes tables, and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Mapping

from partage.edges.host.own_task import unending
from partage.edges.kube.connection import Connection
from partage.edges.kube.scheduling import follow_scheduling
from partage.scheduler.extender import Extender
from partage.serve_http.http import Answer, Page, PageRequest, alive_answer, ready_answer
from partage.serve_http.metrics.exposition import metrics_page

PRIORITIZE = "/prioritize"
_STALLED_S = 60.0
"""A turn takes seconds, however many nodes there are."""


class ExtenderService:
    """Follows a cluster and keeps its extender up to date, until it is cancelled."""

    def __init__(
        self, connection: Connection, extender: Extender, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.extender = extender
        self._connection, self._clock = connection, clock
        self._turned_s = clock()

    def pages(self) -> Mapping[str, Page]:
        """What is served; a POST goes to ``PRIORITIZE`` alone."""
        return {
            PRIORITIZE: self.extender.page,
            "/metrics": metrics_page(self.extender.families),
            "/healthz": self._health,
            "/livez": self._life,
        }

    async def run(self) -> None:
        """Never returns. Raises what is a mistake of ours."""
        stopped = threading.Event()
        async with asyncio.TaskGroup() as group:
            watches = follow_scheduling(self._connection, self.extender.driver, self.extender)
            group.create_task(unending("watches", watches))
            try:
                await asyncio.to_thread(self._turns, stopped)
            finally:
                stopped.set()

    def _turns(self, stopped: threading.Event) -> None:
        ready = False
        with contextlib.closing(self.extender):
            while not stopped.wait(_TURN_S):
                self.extender.turn()
                self._turned_s = self._clock()
                if not ready and not self.extender.waits_for:
                    ready = True
                    # What was listed stays. To look through it for garbage takes 30 ms, amid an answer.
                    gc.collect()
                    gc.freeze()

    def _health(self, _: PageRequest) -> Answer:
        """Whether answers are more than all nodes alike."""
        return ready_answer(self.extender.waits_for)

    def _life(self, _: PageRequest) -> Answer:
        return alive_answer(alive=self._clock() - self._turned_s < _STALLED_S)


_TURN_S = 0.25

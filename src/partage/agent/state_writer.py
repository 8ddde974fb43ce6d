"""Writes the agent's state for the next agent: the policy, what GPUs serve, health that needs proof."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.log import warn_anew
from partage.agent.supervision import wait_at_most
from partage.edges.files.state import SavedState, StateDir, served_by_report
from partage.model.ids import GpuUuid
from partage.plan.reconcile.settings_steps import OriginalSettings

log = logging.getLogger(__name__)

RETRY_S = 30.0
"""How soon a failed write is retried, in seconds: a full disk takes time to repair."""
WAIT_LIMIT_S = 2.0
"""How long new shares wait for the disk, in seconds. A disk that hangs must not keep GPUs from being
offered."""


class StateWriter(Struct):
    """Writes the state directory when something changed. If it is read-only, the agent warns and runs.

    report: the file with the last report, which is asked where there is no state. trouble: why the last state
    is not on disk; empty if it is.
    """

    directory: StateDir
    report: Path
    clock: Callable[[], float]
    trouble: str = ""
    _latest: SavedState | None = None
    _key: object = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: int = 0
    _done: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> SavedState:
        """The state of the agent that ran before; without one, what its last report says that GPUs served."""
        loaded = self.directory.load(self.clock())
        for problem in loaded.problems:
            log.warning("state cannot be used", extra={"problem": problem})
        if self.directory.problem:
            self._note(self.directory.problem)
        return loaded.state or self._reported()

    def _reported(self) -> SavedState:
        """Shares that are held now were given as these offers said: their ids do not say it."""
        serving = served_by_report(self.report, self.clock())
        if serving:
            log.warning("state is lost", extra={"served_by": str(self.report), "gpus": len(serving)})
        return SavedState(serving=serving)

    def update(self, state: SavedState) -> None:
        """Have this written if it changed. Timers of health alone do not count."""
        key = (state.boot_id, state.policy, state.serving, dict(state.health), state.original)
        self._latest = state
        if key != self._key:
            self._key = key
            self._asked += 1
            self._changed.set()

    async def write_originals(self, original: Mapping[GpuUuid, OriginalSettings]) -> None:
        """Write the original settings of GPUs to disk before they are changed."""
        self._latest = replace(self._latest or SavedState(), original=original)
        self._key = None
        self._asked += 1
        self._changed.set()
        await self.written()

    async def run(self) -> None:
        """Write when something changed; retry after a failure."""
        while True:
            await wait_at_most(self._changed, RETRY_S if self.trouble else None)
            self._changed.clear()
            asked = self._asked
            await asyncio.to_thread(self.save)
            self._done = asked
            self._news.set()

    async def written(self) -> None:
        """Wait until the state is on disk, or cannot be written, or WAIT_LIMIT_S is over."""
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                while self._done < self._asked:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            log.warning("state is slow to be written", extra={"waited": f"{WAIT_LIMIT_S:g} s"})

    def save(self) -> None:
        """Write the latest state. Blocks, also while another thread writes."""
        with self._writing:
            if self._latest is not None:
                failure = self.directory.save(self._latest, self.clock())
                self._note(failure.reason if failure else "")

    def _note(self, trouble: str) -> None:
        self.trouble = warn_anew(log, "state cannot be written", trouble, self.trouble)

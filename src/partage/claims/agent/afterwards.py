"""What no pod waits for is done once the kubelet has been quiet for a moment.

A turn of the loop, and a status in the API server, take as long as a prepare: done at once they would delay
the next claim of the same pod, or of the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Protocol

from partage.errors import PartageError

log = logging.getLogger(__name__)

QUIET_S, LONGEST_S = 0.05, 1.0
"""How long no call has come or been answered, and how long that is waited for at most, in seconds."""


class Unflushed(Protocol):
    """What was written and may be lost with a loss of power."""

    def flush(self) -> None:
        """Raises HardwareError. It blocks: call it in a thread."""


class Afterwards:
    """Asks for turns of the loop, and flushes what was written. ask: for a turn."""

    def __init__(self, clock: Callable[[], float], ask: Callable[[], None], written: Unflushed) -> None:
        self._clock, self._ask, self._written = clock, ask, written
        self._called_s = -inf
        self._wanted = asyncio.Event()

    def called(self) -> None:
        """The kubelet has called, or has its answer."""
        self._called_s = self._clock()

    def ask(self) -> None:
        """Ask for a turn, later."""
        self._wanted.set()

    async def quiet(self) -> None:
        """Return once the kubelet is quiet, or has not been for long."""
        end_s = self._clock() + LONGEST_S
        while True:
            pause_s = min(self._called_s + QUIET_S, end_s) - self._clock()
            if pause_s <= 0:
                return
            await asyncio.sleep(pause_s)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wanted.wait()
            await self.quiet()
            self._wanted.clear()
            self._ask()
            try:
                await asyncio.to_thread(self._written.flush)
            except PartageError as error:
                log.warning("records of claims", extra={"problem": str(error)})

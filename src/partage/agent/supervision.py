"""Tasks that last as long as the agent: one that ends before is an error, said and started again. And how
they wait for an event with a limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from partage.edges.host.own_task import TaskEnded, unending
from partage.errors import InputError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
STEADY_S = 60.0
"""A task that has run for so long since its last start is well again."""
GIVEN_UP = 8
"""After so many ends in a row, 13 seconds, a task counts as one that cannot be started again. It is tried all
the same."""

log = logging.getLogger(__name__)


class _Ends(Struct):
    """in_a_row: without STEADY_S between them. started_s: the last time. reason: of the last end."""

    started_s: float
    in_a_row: int = 0
    reason: str = ""


class Supervisor:
    """Keeps tasks running. trouble: those that cannot be kept."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: dict[str, _Ends] = {}

    async def keep(self, name: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do the work until cancelled, again after each end.

        Raises InputError: only a person can mend that.
        """
        now = self._ends[name] = _Ends(self._clock())
        try:
            while True:
                now.started_s = self._clock()
                try:
                    await unending(name, work())
                except InputError:
                    raise
                except Exception as error:  # a bug in one part must not take the others along
                    self._note(now, error)
                    log.exception("task ended", extra={"task": name, "again_in_s": _pause_s(now.in_a_row)})
                await asyncio.sleep(_pause_s(now.in_a_row))
        finally:
            if self._ends.get(name) is now:
                del self._ends[name]

    def _note(self, now: _Ends, error: Exception) -> None:
        now.in_a_row = 1 if self._clock() - now.started_s >= STEADY_S else now.in_a_row + 1
        now.reason = str(error) if isinstance(error, TaskEnded) else f"{type(error).__name__}: {error}"

    @property
    def trouble(self) -> str:
        """Which tasks end again and again, a sentence; empty if all run."""
        now_s = self._clock()
        return "; ".join(
            f"the task {name} ended {one.in_a_row} times in a row: {one.reason}"
            for name, one in list(self._ends.items())
            if one.in_a_row >= GIVEN_UP and now_s - one.started_s < STEADY_S
        )


def _pause_s(in_a_row: int) -> float:
    """0.1 s, doubled each time up to 30 s."""
    return min(FIRST_PAUSE_S * 2.0 ** min(in_a_row - 1, 16), LONGEST_PAUSE_S)


async def wait_at_most(event: asyncio.Event, longest_s: float | None) -> bool:
    """Wait until the event is set, at most longest_s seconds (None: no limit). Returns whether it is set."""
    try:
        async with asyncio.timeout(longest_s):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()

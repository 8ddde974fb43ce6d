"""Deadlines for calls of the driver, which does one thing at a time: a step makes other calls wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from partage.edges.hardware.port import DEADLINE_S, STEP_DEADLINE_S
from partage.errors import HardwareTimeout
from partage.values import Frozen

PERFORM = "perform"
"""The verb that changes something."""


class _Wait(Frozen, eq=False):
    verb: str
    timeout: asyncio.Timeout
    allowance_s: float


class CallDeadlines:
    """The deadlines of one side of the socket. While a step is performed, the deadlines of all other calls
    stop.

    Without this, a call that waits for a GPU reset would look like a helper that hangs, and the helper
    would be killed during the reset.
    """

    def __init__(self, call_s: float = DEADLINE_S, step_s: float = STEP_DEADLINE_S) -> None:
        self._call_s = call_s
        self._step_s = step_s
        self._steps_s = 0.0  # how long the steps under way may take, together
        self._waits: set[_Wait] = set()

    @contextlib.asynccontextmanager
    async def within(self, verb: str, extra_s: float = 0.0) -> AsyncIterator[None]:
        """Ends the code in the context when its time is over. extra_s: time beyond that of a usual call.

        Raises HardwareTimeout.
        """
        allowance_s = extra_s + (self._step_s if verb == PERFORM else self._call_s)
        allowed_s = allowance_s + self._steps_s
        try:
            with self._step(allowance_s) if verb == PERFORM else contextlib.nullcontext():
                async with asyncio.timeout(allowed_s) as timeout:
                    with self._known(_Wait(verb, timeout, allowance_s)):
                        yield
        except TimeoutError as error:
            raise HardwareTimeout(f"{verb} did not end within {allowed_s:g} s") from error

    @contextlib.contextmanager
    def _known(self, wait: _Wait) -> Iterator[None]:
        self._waits.add(wait)
        try:
            yield
        finally:
            self._waits.discard(wait)

    @contextlib.contextmanager
    def _step(self, step_s: float) -> Iterator[None]:
        """Extend the deadlines of waiting calls by the time of a step until it ends. Earlier steps need no
        extension.
        """
        for wait in self._waits:
            if wait.verb != PERFORM and not wait.timeout.expired():
                wait.timeout.reschedule(_when(wait) + step_s)
        self._steps_s += step_s
        try:
            yield
        finally:
            self._steps_s -= step_s
            now = asyncio.get_running_loop().time()
            for wait in self._waits:
                if not wait.timeout.expired():
                    due = now + wait.allowance_s + self._steps_s
                    wait.timeout.reschedule(min(_when(wait), due))


def _when(wait: _Wait) -> float:
    when = wait.timeout.when()
    assert when is not None
    return when

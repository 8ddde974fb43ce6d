"""How long a call may take, where an act can hold up the others: the driver does one thing at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from partage.edges.hardware.port import DEADLINE_S, STEP_DEADLINE_S
from partage.errors import HardwareTimeout

ACT = "perform"
"""The verb that changes something."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    verb: str
    timeout: asyncio.Timeout
    allowance_s: float


class CallDeadlines:
    """The deadlines of one side of the socket. While an act goes on, those of all other calls stand still.

    Without that a look at the GPUs that waits for a reset would be taken for a helper that hangs, and the
    helper be killed in the middle of the reset.
    """

    def __init__(self, call_s: float = DEADLINE_S, act_s: float = STEP_DEADLINE_S) -> None:
        self._call_s = call_s
        self._act_s = act_s
        self._acts = 0
        self._waits: set[_Wait] = set()

    @contextlib.asynccontextmanager
    async def within(self, verb: str, extra_s: float = 0.0) -> AsyncIterator[None]:
        """What is done in the context ends in time. extra_s: what it may take longer than a usual call.

        Raises HardwareTimeout.
        """
        allowance_s = extra_s + (self._act_s if verb == ACT else self._call_s)
        allowed_s = allowance_s + self._act_s * self._acts
        try:
            with self._act() if verb == ACT else contextlib.nullcontext():
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
    def _act(self) -> Iterator[None]:
        """Calls that wait already get the act's time as well, until it ends; an act before it needs none."""
        for wait in self._waits:
            if wait.verb != ACT and not wait.timeout.expired():
                wait.timeout.reschedule(_when(wait) + self._act_s)
        self._acts += 1
        try:
            yield
        finally:
            self._acts -= 1
            now = asyncio.get_running_loop().time()
            for wait in self._waits:
                if not wait.timeout.expired():
                    due = now + wait.allowance_s + self._act_s * self._acts
                    wait.timeout.reschedule(min(_when(wait), due))


def _when(wait: _Wait) -> float:
    when = wait.timeout.when()
    assert when is not None
    return when

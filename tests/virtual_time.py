"""An event loop whose clock jumps to the next timer when nothing else is left to do: hours in seconds.

Sockets and threads are real. The clock moves only while no socket of this loop has anything to say and no
thread works for it, so both ends of a connection have to be in this loop.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

GRACE_S = 0.003
"""Real seconds in which a socket of this machine has delivered what was written to it."""


class _Selector(selectors.DefaultSelector):
    ahead_s = 0.0
    threads = 0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= GRACE_S:
            return super().select(timeout)
        if self.threads:
            return super().select(min(timeout, 0.05))
        found = super().select(GRACE_S)
        if not found:
            self.ahead_s += timeout - GRACE_S
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._jumps = _Selector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return super().time() + self._jumps.ahead_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        future = super().run_in_executor(executor, func, *args)
        self._jumps.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self._jumps.threads -= 1


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, with a clock that jumps."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """A test that does so."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> T:
        return run_in_virtual_time(test(*arguments, **named))

    return run

"""Loops that keep what went wrong; and one in which time passes only when nothing can happen without it.

Sockets and files are real, seconds are not: an hour of probation costs what the turns within it cost, and
the same operations give the same run. Everything has to live in this one loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from math import inf, nextafter
from typing import Any, TypeVar

TICK_S = 1e-6
"""No two looks at the clock give the same time: in the world no two events do either."""
_T = TypeVar("_T")


class Deadlock(RuntimeError):
    """Everybody waits for something that nobody will ever do."""


class _Selector(selectors.EpollSelector):
    """Never blocks: where nothing is ready, the time until the next timer has passed."""

    skip: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock("nothing is ready, and no timer runs")
        self.skip(timeout)
        return []


class Loop(asyncio.SelectorEventLoop):
    """A usual one. trouble: what nobody caught: exceptions of callbacks, and of tasks nobody waited for."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self.trouble: list[str] = []
        super().__init__(selector)
        self.set_exception_handler(self._note)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.trouble.append(f"{context['message']}: {error!r}" if error else context["message"])


class SimulatedTimeLoop(Loop):
    """``time()`` is the only clock.

    thread_s: how long work for threads takes, files above all. It is done all at once at the end of that
    time: whoever is killed meanwhile has not done it.
    """

    def __init__(self) -> None:
        self.thread_s = 0.0
        self._now_s = 1000.0
        selector = _Selector()
        selector.skip = self._skip
        super().__init__(selector)

    def time(self) -> float:
        self._skip(TICK_S)
        return self._now_s

    def _skip(self, seconds: float) -> None:
        """After some centuries a tick is less than the last digit of the clock, which has to go on all the
        same."""
        self._now_s = max(self._now_s + seconds, nextafter(self._now_s, inf))

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., _T], *arguments: Any
    ) -> asyncio.Future[_T]:
        done: asyncio.Future[_T] = self.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(context.run(function, *arguments))
            except Exception as error:  # noqa: BLE001 (whatever it is, it belongs to who waits for it)
                done.set_exception(error)

        self.call_later(self.thread_s, work)
        return done

"""One thread for calls that may block, with deadlines for the callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from partage.errors import HardwareTimeout

T = TypeVar("T")


class Worker:
    """Makes calls one after the other on its own thread.

    A call that does not return blocks the calls behind it, which time out too; then the process must be
    replaced. The thread is a daemon thread, so that the process can end although a driver call hangs.
    """

    def __init__(self, name: str, between: Callable[[], float | None] = lambda: None) -> None:
        """between: called on the thread after every call, and again after the seconds that it returns; None:
        not
        before the next call. It raises nothing.
        """
        self._name = name
        self._between = between
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[[], T], deadline_s: float) -> T:
        """What the function returns or raises. Raises HardwareTimeout after deadline_s.

        If the caller is cancelled before the call begins, the call is not made.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._start()
        self._jobs.put(lambda: _make(function, future, loop))
        try:
            async with asyncio.timeout(deadline_s):
                return await future
        except TimeoutError as error:
            raise HardwareTimeout(
                f"a driver call did not end within {deadline_s:g} s", "dmesg may say which GPU is in trouble"
            ) from error

    def stop(self) -> None:
        """End the thread after the queued calls, without waiting. A later call starts a new thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            self._jobs = SimpleQueue()
            self._thread = threading.Thread(
                target=_run, args=(self._jobs, self._between), name=self._name, daemon=True
            )
            self._thread.start()


def _run(jobs: SimpleQueue[Callable[[], None] | None], between: Callable[[], float | None]) -> None:
    while True:
        try:
            job = jobs.get(timeout=between())
        except Empty:
            continue
        if job is None:
            return
        job()


def _make(function: Callable[[], T], future: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    """Make one call and hand the result to the loop, unless the caller is gone."""
    if future.cancelled():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - every error is raised in the caller
        _deliver(loop, future, lambda error=error: future.set_exception(error))  # type: ignore[misc]
    else:
        _deliver(loop, future, lambda: future.set_result(result))


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    def settle_if_awaited() -> None:
        if not future.done():
            settle()

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle_if_awaited)

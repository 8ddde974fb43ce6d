"""One thread that makes the calls which may block, and deadlines for those who wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from partage.errors import HardwareTimeout

T = TypeVar("T")


class Worker:
    """Makes calls one after the other on a thread of its own.

    A call that does not return holds up the calls behind it: they time out as well, and the owner has to
    give the process up. The thread is a daemon, so that a process can end although a driver call hangs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[[], T], deadline_s: float) -> T:
        """What the function returns or raises. Raises HardwareTimeout after deadline_s.

        A call whose caller has gone before it began is not made.
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
        """End the thread after the calls that wait; does not wait for it. A later call starts a new one."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            self._jobs = SimpleQueue()
            self._thread = threading.Thread(target=_run, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()


def _run(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()


def _make(function: Callable[[], T], future: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    """Make one call and hand its outcome to the loop that waits, if it still does."""
    if future.cancelled():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the caller, not to the thread
        _deliver(loop, future, lambda error=error: future.set_exception(error))  # type: ignore[misc]
    else:
        _deliver(loop, future, lambda: future.set_result(result))


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    def settle_if_awaited() -> None:
        if not future.done():
            settle()

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle_if_awaited)

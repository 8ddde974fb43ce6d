"""Waiting for moments at which other timers are due too (a processor that sleeps is woken once for all), and
for changes of a directory: that something in it was made, moved or removed is noticed at once, with
inotify(7).

No library: inotify_simple starts a process (ldconfig) when it is imported, watchdog and watchfiles bring
threads.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakSet


async def until_tick(period_s: float, event: asyncio.Event | None = None, *, least_s: float = 0.0) -> None:
    """Wait until the loop's clock is a multiple of period_s, but least_s or more, or until the event is
    set.
    """
    due_s = ((asyncio.get_running_loop().time() + least_s) // period_s + 1) * period_s
    try:
        async with asyncio.timeout_at(due_s):
            await (event or asyncio.Event()).wait()
    except TimeoutError:
        pass


_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _ONLYDIR = 0x40, 0x80, 0x100, 0x200, 0x01000000
_DELETE_SELF, _MOVE_SELF, _MASK_ADD = 0x400, 0x800, 0x20000000
_CLOSE_WRITE = 0x8
_MASK = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR | _MASK_ADD
_IGNORED = 0x8000
_READ_BYTES = 16 * 1024
_TOGETHER_S = 0.05
_EVENT = struct.Struct("iIII")
"""One event: its watch, what happened, a cookie, the length of the name that follows."""

_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryChanges:
    """Sets events when their directory changes. One for all directories: a user has 128 at most on a node.

    Some file systems tell nothing, and the kernel may refuse: look now and then all the same.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._events: dict[int, WeakSet[asyncio.Event]] = {}

    def watch(self, directory: Path, event: asyncio.Event, *, contents: bool = False) -> bool:
        """Set ``event`` at every change from now on. False if the kernel refuses. contents: also when a file
        in it was written to.

        Call it before each look at the directory, in a running loop: another one may be in its place.
        """
        try:
            if self._descriptor is None:
                self._descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
                asyncio.get_running_loop().add_reader(self._descriptor, self._read, self._descriptor)
            mask = _MASK | (_CLOSE_WRITE if contents else 0)
            watch = _checked(_libc.inotify_add_watch(self._descriptor, os.fsencode(directory), mask))
        except OSError:
            return False
        self._events.setdefault(watch, WeakSet()).add(event)
        return True

    async def wait(
        self, directories: Iterable[Path], event: asyncio.Event, *, told_s: float, untold_s: float
    ) -> None:
        """Wait until one of these directories or a file in it has changed, or for a tick.

        event: the caller's own; unset afterwards. told_s, untold_s: the period of the ticks where the kernel
        tells of changes, and where it refuses.
        """
        told = [self.watch(directory, event, contents=True) for directory in directories]
        await until_tick(told_s if all(told) else untold_s, event)
        if event.is_set():  # what follows at once is one change: a file is removed and written anew
            await asyncio.sleep(_TOGETHER_S)
            event.clear()

    def close(self) -> None:
        """Watch nothing any more. Idempotent.

        The kernel takes 15 ms and more for it, in which others can stop: a thread waits for it.
        """
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            threading.Thread(target=os.close, args=(self._descriptor,), daemon=True).start()
            self._descriptor = None

    def _read(self, descriptor: int) -> None:
        """What has changed in a directory does not matter: the caller looks anyway."""
        told = os.read(descriptor, _READ_BYTES)
        at = 0
        while at < len(told):
            watch, what, _, name_bytes = _EVENT.unpack_from(told, at)
            at += _EVENT.size + name_bytes
            # -1: more happened than the kernel keeps, in any of them.
            for of_one in [*self._events.values()] if watch < 0 else [self._events.get(watch, ())]:
                for event in of_one:
                    event.set()
            if what & _IGNORED:  # the directory is no more
                self._events.pop(watch, None)


def _checked(answer: int) -> int:
    """What a C function has returned. Raises OSError."""
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer

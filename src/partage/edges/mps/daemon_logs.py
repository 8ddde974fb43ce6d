"""Keeps the logs of a daemon small: what is old is let go, in place. Blocking.

A control daemon writes four lines (220 bytes) for each command, also for Partage's own. It keeps its log open
and appends (535, 550, 555), so the log cannot be replaced. A hole is punched: the size stays what it was and
only grows, the space is free again, and who reads on from where they were misses nothing new.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import stat
from pathlib import Path

from partage.edges.host.read_file import open_of_kind
from partage.edges.mps.paths import DaemonPaths
from partage.units import MIB

LARGEST_BYTES = 4 * MIB
"""A log that takes more space than this is cut."""
KEPT_BYTES = MIB
"""What stays of it, its end."""

_READ_BYTES, _MOST_READS = 2**16, 64
"""More than a pipe holds (1 MiB), and not for ever."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, whatever the file system."""


def cut_logs(paths: DaemonPaths) -> None:
    """Let go of the beginning of each log that has grown. A log that cannot be cut stays as it is: that its
    file system is full is said elsewhere.
    """
    for log in (paths.log / "control.log", paths.log / "server.log", paths.server_log):
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = open_of_kind(log, stat.S_ISREG, flags)
            try:
                _cut(handle)
            finally:
                os.close(handle)


def empty_full_pipe(paths: DaemonPaths, descriptors: Path) -> bool:
    """Empty ``pipe/log`` if it is full; whether it was. descriptors: ``/proc/PID/fd`` of the daemon.

    A daemon (535, 550, 555) writes each line of its log into that pipe and reads it there again; so do
    clients, and everybody who has the directory may. Where a tenant fills it, the daemon waits for ever. Root
    of a container can also remove its name, and keep it open: only the daemon's own descriptor leads there.
    """
    try:
        device = paths.pipe.stat().st_dev
        opened = [path for path in descriptors.iterdir() if _is_pipe_on(path, device)]
    except OSError:
        return False
    return True in [_emptied(path) for path in opened]  # each, also after one that was full


def _is_pipe_on(descriptor: Path, device: int) -> bool:
    """Whether it is a pipe with a name on this file system; those without have one of their own."""
    try:
        status = descriptor.stat()
    except OSError:
        return False
    return stat.S_ISFIFO(status.st_mode) and status.st_dev == device


def _emptied(pipe: Path) -> bool:
    try:
        handle = open_of_kind(pipe, stat.S_ISFIFO, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if select.select((), (handle,), (), 0)[1]:
            return False
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_READS):
                os.read(handle, _READ_BYTES)
    finally:
        os.close(handle)
    return True


def _cut(handle: int) -> None:
    status = os.fstat(handle)
    if status.st_blocks * _BLOCK_BYTES <= LARGEST_BYTES:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    end = ctypes.c_int64(max(0, status.st_size - KEPT_BYTES))
    if libc.fallocate64(handle, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(0), end):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

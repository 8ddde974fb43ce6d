"""The clock and the disks of a machine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from partage.doctor.decide.observation import Clock, Disk, Unseen
from partage.doctor.host.root import NodeRoot

_SYNCHRONISED_US = 16_000_000
"""Up to this error, in microseconds, the kernel counts the clock as synchronised, and timedatectl too."""


class _Timex(ctypes.Structure):
    """The beginning of ``struct timex`` (adjtimex(2)), and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("rest", ctypes.c_byte * 256),
    )


def clock_seen() -> Clock | Unseen:
    """What the kernel says of its clock. It is only asked, not changed."""
    state = _Timex()
    library = ctypes.CDLL(None, use_errno=True)
    if library.adjtimex(ctypes.byref(state)) < 0:
        return Unseen(f"the kernel does not say how right its clock is: {os.strerror(ctypes.get_errno())}")
    return Clock(state.maxerror < _SYNCHRONISED_US, state.maxerror / 1e6)


def disks_seen(root: NodeRoot, directories: Iterable[str]) -> tuple[Disk, ...]:
    """The file systems of directories; of one that does not exist, that of the next one above it."""
    found = []
    for directory in directories:
        path = root.at(directory)
        while not os.access(path, os.F_OK) and path != path.parent:
            path = path.parent
        try:
            told = os.statvfs(path)
        except OSError:
            continue
        found.append(
            Disk(
                directory,
                told.f_bavail * told.f_frsize,
                told.f_favail if told.f_files else None,
                bool(told.f_flag & os.ST_RDONLY),
            )
        )
    return tuple(found)

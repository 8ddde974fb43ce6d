"""Locks of files between processes, flock(2): the kernel releases one when the process that has it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock(descriptor: int) -> bool:
    """Whether the open file is locked for us now. Does not wait. Raises OSError where it cannot be locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether another process has the lock now. No lock that cannot be tried."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)

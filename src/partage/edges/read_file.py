"""Reading files that others may have put there: never more than a limit, and never waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """The first limit_bytes of a regular file. Raises OSError, also for a pipe, a device or a directory.

    Opening a pipe without O_NONBLOCK waits until another process writes to it, possibly for ever.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return read_regular_at(handle, limit_bytes, path)
    finally:
        os.close(handle)


def read_regular_at(handle: int, limit_bytes: int, path: Path) -> bytes:
    """The same of a file that is open already; it stays open. path: for errors."""
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with os.fdopen(handle, "rb", closefd=False) as stream:
        return stream.read(limit_bytes)

"""Reading files that others may have put there: never more than a limit, and never waiting. Which files of a
directory are meant."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """The first limit_bytes of a regular file. Raises OSError, also for a pipe, a device or a directory.

    Opening a pipe without O_NONBLOCK waits until another process writes to it, possibly for ever.
    """
    handle = _opened(path)
    try:
        return read_regular_at(handle, limit_bytes, path)
    finally:
        os.close(handle)


def read_tail(path: Path, limit_bytes: int) -> bytes:
    """As ``read_regular``, the last limit_bytes: the beginning of a log may be a hole of any size."""
    handle = _opened(path)
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            os.lseek(handle, max(0, os.fstat(handle).st_size - limit_bytes), os.SEEK_SET)
        return read_regular_at(handle, limit_bytes, path)
    finally:
        os.close(handle)


def read_named(path: Path, limit_bytes: int) -> bytes:
    """The same of a file that a person has named for this command, which may also be a pipe that the shell
    has made for it (``<(...)``, ``/dev/stdin``): that has a writer, and is read to its end.

    A pipe with a name of its own is refused: nobody may ever write to it.
    """
    handle = _opened(path)
    try:
        if not _is_anonymous_pipe(handle):
            return read_regular_at(handle, limit_bytes, path)
        os.set_blocking(handle, True)
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read(limit_bytes)
    finally:
        os.close(handle)


def check_regular(path: Path) -> None:
    """Raises OSError for what ``read_regular`` does not read: before a library opens it, which may wait."""
    read_regular(path, 1)


def files_below(directory: Path, *endings: str) -> list[Path]:
    """Files of a directory and those in it whose names end so, sorted. Names that begin with a dot do not
    count, of directories neither: they are files of editors and tools, or a second way to the same files.
    """
    return sorted(
        path
        for path in directory.rglob("*")
        if path.suffix in endings
        and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    )


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "not a regular file, but a socket", str(path)) from error
        raise


def _is_anonymous_pipe(handle: int) -> bool:
    if not stat.S_ISFIFO(os.fstat(handle).st_mode):
        return False
    try:
        return str(Path(f"/proc/self/fd/{handle}").readlink()).startswith("pipe:")
    except OSError:
        return False


def read_regular_at(handle: int, limit_bytes: int, path: Path) -> bytes:
    """The same of a file that is open already; it stays open. path: for errors."""
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device"
        raise OSError(errno.EINVAL, f"not a regular file, but {kind}", str(path))
    with os.fdopen(handle, "rb", closefd=False) as stream:
        return stream.read(limit_bytes)

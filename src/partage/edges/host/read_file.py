"""Reading files that others may have put there: never more than a limit, and never waiting. Which files of a
directory are meant.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from partage.errors import wrong_input

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISLNK, "a link"))


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """The first limit_bytes of a regular file. Raises OSError, also for a pipe, a device or a directory.

    Opening a pipe without O_NONBLOCK waits until another process writes to it, possibly for ever.
    """
    handle = open_of_kind(path, stat.S_ISREG, _READ)
    try:
        return read_regular_at(handle, limit_bytes, path)
    finally:
        os.close(handle)


def read_tail(path: Path, limit_bytes: int) -> bytes:
    """As ``read_regular``, the last limit_bytes: the beginning of a log may be a hole of any size."""
    handle = open_of_kind(path, stat.S_ISREG, _READ)
    try:
        os.lseek(handle, max(0, os.fstat(handle).st_size - limit_bytes), os.SEEK_SET)
        return read_regular_at(handle, limit_bytes, path)
    finally:
        os.close(handle)


def read_named(path: Path, limit_bytes: int) -> bytes:
    """The same of a file that a person has named for this command, which may also be a pipe that the shell
    has made for it (``<(...)``, ``/dev/stdin``): that has a writer, and is read to its end.

    A pipe with a name of its own is refused: nobody may ever write to it.
    """
    handle = open_of_kind(path, lambda mode: stat.S_ISREG(mode) or stat.S_ISFIFO(mode), _READ)
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


def open_of_kind(path: Path, is_kind: Callable[[int], bool], flags: int) -> int:
    """A descriptor of a file, if it is of that kind (``stat.S_ISREG``). Others are not opened: to open a
    device may do something, a watchdog begins to count. Raises OSError, also for another kind.
    """
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC | flags & os.O_NOFOLLOW)
    try:
        mode = os.fstat(seen).st_mode
        if not is_kind(mode):
            raise _is_another(mode, path)
        # The same file, whatever has the name now.
        return os.open(f"/proc/self/fd/{seen}", flags & ~os.O_NOFOLLOW)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(seen)


def _is_another(mode: int, path: Path) -> OSError:
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "a device")
    return OSError(errno.EINVAL, f"not a regular file, but {kind}", str(path))


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
    if not stat.S_ISREG(mode):
        raise _is_another(mode, path)
    with os.fdopen(handle, "rb", closefd=False) as stream:
        content: bytes | None = stream.read(limit_bytes)
    if content is None:  # a regular file of /proc that waits for its content, such as kmsg
        raise BlockingIOError(errno.EAGAIN, "it has nothing to read now", str(path))
    return content


_LARGEST_BYTES = 2**16


def read_token(path: Path) -> str:
    """Its first line that is not empty. Raises InputError if it cannot be read."""
    try:
        text = read_regular(path, _LARGEST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not text"
        raise wrong_input(path, f"the token cannot be read: {why}") from error
    return text.strip().partition("\n")[0].strip()

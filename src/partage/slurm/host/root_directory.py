"""A directory that only its owner can have filled: what root reads and writes there, no other user has put
there.

Every step of the path is opened without following a link, and belongs to root or to this process's user;
nobody else can write it. So no other user can exchange a part of the path, before or while it is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from partage.edges.host.read_file import read_regular_at

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class RootDirectory:
    """An open directory; use as a context manager. All calls block, and raise OSError.

    make: create what is missing of the path, with mode 0755. PermissionError: another user could have
    written it.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        self.path = path
        self._handle = _open(path, make=make)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._handle)

    def names(self) -> list[str]:
        """What is in it."""
        handle = os.open(".", _LIST, dir_fd=self._handle)
        try:
            return os.listdir(handle)  # noqa: PTH208 - of a descriptor
        finally:
            os.close(handle)

    def read(self, name: str, limit_bytes: int) -> bytes:
        """At most so many bytes of a regular file that only its owner can write."""
        with self._named(name):
            handle = os.open(name, _READ, dir_fd=self._handle)
        try:
            _check_owner(os.fstat(handle), self.path / name)
            return read_regular_at(handle, limit_bytes, self.path / name)
        finally:
            os.close(handle)

    def write(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Put a file there whole, or not at all: a reader finds the old one or the new one."""
        beside = f".{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=self._handle)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._named(name):
            handle = os.open(beside, flags, mode, dir_fd=self._handle)
        try:
            with self._named(name), open(handle, "wb") as stream:  # noqa: PTH123 - Path cannot open with dir_fd
                os.fchmod(stream.fileno(), mode)  # not by the open, which applies the umask
                stream.write(content)
            os.rename(beside, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=self._handle)
            raise

    def remove(self, name: str) -> bool:
        """Remove a file; whether there was one."""
        try:
            os.unlink(name, dir_fd=self._handle)
        except FileNotFoundError:
            return False
        return True

    def open_lock(self, name: str) -> int:
        """A file to lock, made if it is missing; the caller closes it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._named(name):
            return os.open(name, flags, 0o600, dir_fd=self._handle)

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Errors name the whole path."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / name)) from error


def read_root_file(path: Path, limit_bytes: int) -> bytes:
    """A file that only its owner can have written, nor any step of its path. Raises OSError."""
    with RootDirectory(path.parent) as directory:
        return directory.read(path.name, limit_bytes)


def _open(path: Path, *, make: bool) -> int:
    if not path.is_absolute():
        raise OSError(errno.EINVAL, "is not an absolute path", str(path))
    handle = os.open("/", _STEP)
    done = Path("/")
    try:
        for part in path.parts[1:]:
            done /= part
            inner = _step(handle, part, done, make=make)
            os.close(handle)
            handle = inner
            _check_owner(os.fstat(handle), done, sticky=done != path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _step(handle: int, part: str, path: Path, *, make: bool) -> int:
    try:
        return _opened(handle, part, path)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, 0o755, dir_fd=handle)
        made = os.open(part, _LIST, dir_fd=handle)
        try:
            os.fchmod(made, 0o755)  # not by mkdir, which applies the umask
        finally:
            os.close(made)
    return _opened(handle, part, path)


def _opened(handle: int, part: str, path: Path) -> int:
    try:
        return os.open(part, _STEP, dir_fd=handle)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NotADirectoryError(
                errno.ENOTDIR, "is a link or no directory; name the directory itself", str(path)
            ) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _check_owner(status: os.stat_result, path: Path, *, sticky: bool = False) -> None:
    """sticky: others may make files beside it, as in /tmp, but cannot exchange what is there."""
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, f"belongs to user {status.st_uid}, not to root", str(path))
    if status.st_mode & _OTHERS_MAY_WRITE and not (sticky and status.st_mode & stat.S_ISVTX):
        raise PermissionError(errno.EPERM, "can be written by other users than its owner", str(path))

"""Emptying a directory that others write at the same time, also as root of a container that has it mounted.

All is done by descriptors, and no link is followed: at any moment a folder may become a link, or be moved.
Folders are not descended into: what is in one is moved up, so that no depth uses up descriptors or the stack.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath

MOST_ENTRIES = 200_000
"""What is removed at most at once: others could make new files faster than they are removed."""

_AT_ONCE = 1000
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY)
"""Somebody was faster: it is no folder any more, or something new is in it. It is listed again."""

Keep = Callable[[PurePath], bool]


def keep_nothing(path: PurePath) -> bool:
    """No folder stays."""
    del path
    return False


def empty_directory(directory: Path, keep: Keep = keep_nothing) -> None:
    """Remove all that is in a directory, but not the directory. Nothing to do if there is none.

    keep: folders that stay, by their path below it; they are emptied. What is below a folder that goes, goes,
    too. Raises OSError, also for more than MOST_ENTRIES entries.
    """
    with contextlib.suppress(FileNotFoundError), _opened(str(directory)) as handle:
        _Emptying(directory, keep).empty(handle, PurePath())


class _Emptying:
    def __init__(self, directory: Path, keep: Keep) -> None:
        self._directory = directory
        self._keep = keep
        self._left = MOST_ENTRIES

    def empty(self, handle: int, below: PurePath) -> None:
        """As deep as folders are kept, and no deeper."""
        kept: list[str] = []
        while names := self._names(handle, without=kept):  # what was moved up is in the next listing
            for name in names:
                if self._unlinked(handle, name):
                    continue
                if self._keep(below / name):
                    kept.append(name)
                else:
                    self._remove_folder(handle, name)
        for name in kept:
            with _tolerated(), _opened(name, handle) as inner:
                self.empty(inner, below / name)

    def _remove_folder(self, handle: int, name: str) -> None:
        with _tolerated():
            with _opened(name, handle) as inner:
                for one in self._names(inner):
                    if not self._unlinked(inner, one):
                        # The new name is one that nobody can have taken.
                        moved = f".{os.urandom(16).hex()}"
                        with _tolerated():
                            os.rename(one, moved, src_dir_fd=inner, dst_dir_fd=handle)
            os.rmdir(name, dir_fd=handle)

    def _names(self, handle: int, without: Sequence[str] = ()) -> list[str]:
        """The next names of a directory: not all, there may be millions."""
        found = []
        with os.scandir(handle) as entries:
            for entry in entries:
                if entry.name in without:
                    continue
                found.append(entry.name)
                if len(found) == _AT_ONCE:
                    break
        self._left -= len(found)
        if self._left < 0:
            raise OSError(errno.E2BIG, f"more than {MOST_ENTRIES} files are in it", str(self._directory))
        return found

    @staticmethod
    def _unlinked(handle: int, name: str) -> bool:
        """Whether it was something else than a folder; then it has gone."""
        try:
            os.unlink(name, dir_fd=handle)
        except FileNotFoundError:
            return True
        except IsADirectoryError:
            return False
        return True


@contextlib.contextmanager
def _opened(path: str, above: int | None = None) -> Iterator[int]:
    handle = os.open(path, _OPEN, dir_fd=above)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _tolerated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _CHANGED:
            raise

"""Replacing a file in one step: whatever happens meanwhile, the old or the new one is there. An unusable file
is kept for people, out of the way of the next one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(
    path: Path, content: bytes, *, mode: int = 0o600, hidden: bool = False, flush: bool = True
) -> None:
    """Write beside, flush, rename, flush the directory. A left-over of a killed process is overwritten.

    mode: by default only its owner can read the file. hidden: what is beside it begins with a dot, for
    readers that take every other file of the directory. flush: False for what nobody needs after a loss of
    power; then it may be empty. Raises OSError; then the old one is still there.
    """
    beside = path.with_name(f"{'.' if hidden else ''}{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - Path cannot open with O_NOFOLLOW
            os.fchmod(descriptor, mode)
            stream.write(content)
            stream.flush()
            if flush:
                os.fsync(stream.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):  # a full disk should not stay full of our half
            beside.unlink()
        raise
    if not flush:
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


KEPT_ASIDE = 9
"""So many unusable files are kept; the last is overwritten."""


def set_aside(file: Path) -> str:
    """Rename it to ``<name>.corrupt-N``. Returns what was done, a clause. Never raises."""
    names = [file.with_name(f"{file.name}.corrupt-{n}") for n in range(1, KEPT_ASIDE + 1)]
    aside = next((name for name in names if not name.exists()), names[-1])
    try:
        file.replace(aside)
    except OSError as error:
        return f"it could not be set aside: {error.strerror}"
    return f"it was set aside as {aside.name}"

"""Files that a program takes over and that Partage writes anew: each is replaced whole, and a file that
somebody else wrote is not touched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from partage.edges.host.read_file import read_regular
from partage.errors import InputError, Problem, wrong_input

_MODE = 0o644
_LARGEST_BYTES = 64 * 2**20


def write_generated(directory: Path, files: Mapping[str, str], *marks: str) -> list[str]:
    """Write ``files`` (name to text) into ``directory``; the names of those that have changed.

    marks: how generated files begin, each with one of them. All new files are complete on the disk before the
    first one takes its place. Raises InputError, and then nothing has changed: a file of that name does not
    begin with one of them, or the directory cannot be written.
    """
    now = {name: _content(directory / name) for name in files}
    begins = tuple(mark.encode() for mark in marks)
    foreign = [name for name, content in now.items() if content and not content.startswith(begins)]
    if foreign:
        hint = "choose another directory, or move the file away"
        raise InputError(
            [
                Problem(
                    str(directory / name), "", "error", "is there already, and Partage did not write it", hint
                )
                for name in foreign
            ]
        )
    changed = [name for name, text in files.items() if now[name] != text.encode()]
    beside = {name: directory / f".{name}.new" for name in changed}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in changed:
            _write(beside[name], files[name].encode())
        for name in changed:
            beside[name].replace(directory / name)
    except OSError as error:
        for path in beside.values():
            with suppress(OSError):
                path.unlink()
        said = f"cannot be written: {error.strerror}"
        raise wrong_input(error.filename or directory, said) from error
    return changed


def _content(path: Path) -> bytes | None:
    """None: there is no such file. Raises InputError for one that cannot be read."""
    try:
        return read_regular(path, _LARGEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        text = f"cannot be replaced: {error.strerror or error}"
        raise wrong_input(path, text) from error


def _write(path: Path, content: bytes) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _MODE)
    with open(descriptor, "wb") as stream:  # noqa: PTH123 - Path cannot open with O_EXCL
        os.fchmod(stream.fileno(), _MODE)  # not by the open, which applies the umask
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())

"""Files that people name: policies, stories, machines. Never more than LIMIT_BYTES of them is read."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partage.codec.yaml_document import LIMIT_BYTES, check_size
from partage.edges.host.read_file import read_named, read_regular
from partage.errors import wrong_input

STDIN = "-"


def read_input(name: str) -> bytes:
    """A file named on the command line, standard input for ``-``. A pipe of the shell is read to its end.

    Raises InputError: no such file, unreadable, too large, a named pipe, a device.
    """
    with _reported(name):
        if name == STDIN:
            content = sys.stdin.buffer.read(LIMIT_BYTES + 1)
        else:
            check_size(Path(name).stat().st_size, name)
            content = read_named(Path(name), LIMIT_BYTES + 1)
        check_size(len(content), name)
        return content


def read_regular_input(name: str) -> bytes:
    """A file that nobody waits for: one that the agent watches, or that another file names.

    Raises InputError, also for pipes and devices.
    """
    with _reported(name):
        content = read_regular(Path(name), LIMIT_BYTES + 1)
        check_size(len(content), name)
        return content


@contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise wrong_input(name, *_why(error)) from error


def _why(error: OSError | ValueError) -> tuple[str, str]:
    """The problem with a file, and a hint."""
    match error.errno if isinstance(error, OSError) else None:
        case errno.ENOENT:
            return "cannot be read: no such file", ""
        case errno.EISDIR:
            return "cannot be read: is a directory", "name the file in it"
        case errno.EACCES | errno.EPERM:
            return "cannot be read: permission denied", ""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return f"cannot be read: {reason}", ""

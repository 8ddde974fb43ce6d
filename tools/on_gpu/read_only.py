"""``read_only.py DIRECTORY PROGRAM ...``: becomes the program, which sees that directory mounted read-only.

As the agent mounts it into containers with ``--mps-pipe-read-only``. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import sys

from partage.edges.mps.launch import MS_BIND, MS_REC, MS_SLAVE, mount

_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REMOUNT = 1, 32
FAILED = 126
"""Exit code if nothing could be mounted, or the program not be run."""


def main(arguments: list[str]) -> None:
    """Raises OSError."""
    directory, *program = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mount("none", "/", None, MS_REC | MS_SLAVE)
    mount(directory, directory, None, MS_BIND)
    mount("none", directory, None, MS_BIND | _MS_REMOUNT | _MS_RDONLY)
    os.execv(program[0], program)  # noqa: S606 - our own tenant


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(FAILED)

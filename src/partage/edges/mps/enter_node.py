"""The small program that becomes one of the node's own: enter a mount namespace, then exec.

It is run by path with the standard library only. The namespace is entered in this process and not in the
helper, whose own files would be gone.
"""

from __future__ import annotations

import ctypes
import os
import sys

_CLONE_NEWNS = 0x00020000

FAILED = 126
"""Exit code if the program could not be run."""


def _enter(namespace: str) -> None:
    """Enter a mount namespace, its root and its ``/``. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(handle, _CLONE_NEWNS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), namespace)


def main(arguments: list[str]) -> int:
    """``enter_node.py NAMESPACE PROGRAM ...``: NAMESPACE is a path such as /proc/1/ns/mnt; PROGRAM is looked
    for in PATH, there.
    """
    namespace, *command = arguments
    try:
        _enter(namespace)
        os.execvp(command[0], command)  # noqa: S606 - the command comes from ``systemd``
    except OSError as error:
        sys.stderr.write(f"{error}\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The protocol between control program and daemon. It is our own: NVIDIA's is not documented.

Little is imported here: the control program runs once for every single command, and has to start quickly.
"""

from __future__ import annotations

# Not socket: its import takes longer than all that the control program does.
from _socket import AF_UNIX, SOCK_STREAM, socket

COMMAND_PREFIX = b"control "
"""A control program sends this, its command and a newline. The answer is its length in bytes, a newline, and
the answer. The end of the connection instead: another control program has one, or the daemon has ended.
"""
ERROR_PREFIX = "\x01"
"""An answer of version 3 that is an error begins with this. The control program then exits with 1."""
QUIT = "-q"


def connect(pipe: str) -> socket:
    """A connection to the daemon of this pipe directory. Raises OSError where none listens."""
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.connect(f"{pipe}/control")
    except OSError:
        sock.close()
        raise
    return sock


def daemon_listens(pipe: str) -> bool:
    """Whether a daemon serves this pipe directory, and this process may connect to it."""
    try:
        connect(pipe).close()
    except OSError:
        return False
    return True

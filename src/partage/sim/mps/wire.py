"""The protocol between control program and daemon. It is our own: NVIDIA's is not documented.

Little is imported here: the control program runs once for every single command, and has to start quickly.
"""

from __future__ import annotations

# Not socket: its import takes longer than all that the control program does.
from _socket import AF_UNIX, SOCK_STREAM, socket

CONTROL_HELLO = b"control"
"""The first line of a control program, which says what it is. Each line after it is a command. Its answer is
the length in bytes, a newline, and the text. The end of the connection instead: another control program has
one, or the daemon has ended. The first line of a client is a request.
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


def command_connection(pipe: str) -> socket:
    """A connection for commands. Raises OSError where no daemon listens, or it ends now."""
    sock = connect(pipe)
    sock.sendall(CONTROL_HELLO + b"\n")
    return sock


def daemon_listens(pipe: str) -> bool:
    """Whether a daemon serves this pipe directory, and this process may connect to it."""
    try:
        connect(pipe).close()
    except OSError:
        return False
    return True

"""Whether, and which, process listens on a unix socket."""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")


def is_listening(path: Path) -> bool:
    """Whether a process accepts connections at ``path`` now. Does not wait."""
    return listener(path) is not None


def listener(path: Path) -> int | None:
    """The pid of the process that listens at ``path`` now; None if none does. Does not wait.

    0: a process whose pid is not known here: it is in another pid namespace, or its queue is full.
    """
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):  # NVIDIA's MPS daemons have the second
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(str(path))
                return peer_pid(probe)
            except BlockingIOError:
                return 0  # its queue of connections is full
            except OSError as error:
                if error.errno != errno.EPROTOTYPE:
                    return None
    return None


def peer_pid(connection: socket.socket) -> int:
    """Who is at the other end: the process that connected, or began to listen. 0: not known here."""
    try:
        pid, _, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
    except OSError:
        return 0
    return int(pid)

"""Whether, and which, process listens on a unix socket."""

from __future__ import annotations

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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return 0  # its queue of connections is full
        except OSError:
            return None
        try:
            pid, _, _ = _CREDENTIALS.unpack(
                probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
        except OSError:
            return 0
        return int(pid)

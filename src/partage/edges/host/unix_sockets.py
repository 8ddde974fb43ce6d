"""Unix sockets of this machine: whether, and which, process listens on one; and the one on which systemd
hears that a service with ``Type=notify`` is ready (sd_notify(3), a datagram to NOTIFY_SOCKET).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Mapping
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


def say_ready(environ: Mapping[str, str], status: str) -> bool:
    """Say so, with a line for ``systemctl status``; whether somebody waited for it.

    Nobody does where the service was not started by systemd. A socket that takes nothing is no reason to
    stop: systemd gives up by itself.
    """
    path = environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    text = " ".join(status.split())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.connect("\0" + path[1:] if path.startswith("@") else path)
            to.send(f"READY=1\nSTATUS={text}\n".encode("utf-8", "replace"))
    except OSError:
        return False
    return True

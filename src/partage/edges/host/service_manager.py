"""Tells systemd that a service with ``Type=notify`` is ready: sd_notify(3), a datagram to NOTIFY_SOCKET."""

from __future__ import annotations

import socket
from collections.abc import Mapping


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

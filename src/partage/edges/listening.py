"""Whether another process listens on a unix socket."""

from __future__ import annotations

import socket
from pathlib import Path


def is_listening(path: Path) -> bool:
    """Whether a process accepts connections at ``path`` now. Does not wait."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue of connections is full
        except OSError:
            return False
        return True

"""``nvidia-cuda-mps-server UID``: a process with the right name and user, that ends with its standard input.

The clients' work is accounted by the control daemon. What a server needs of its surroundings it does need: as
its clients' user it has to reach the daemon's socket, and it has to see a GPU; else it exits with status 1.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """Run until the control daemon goes, or wants it gone."""
    from partage.sim.mps.node import load

    node = load(Path(argv[0]).resolve().parent)
    pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    try:
        become(int(argv[1]))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(pipe / "control"))
    except OSError:
        return 1
    if not node.visible(os.environ.get("CUDA_VISIBLE_DEVICES")):
        return 1
    os.write(1, b"ready\n")
    sys.stdin.buffer.read()
    return 0


def become(uid: int) -> None:
    """Be this user, from here on: the interpreter itself may be where only root finds it. Raises OSError."""
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

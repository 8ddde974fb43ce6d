"""``nvidia-cuda-mps-server UID GPUS``: a process with the right name and user, that ends with its input.

The clients' work is accounted by the control daemon. What a server needs of its surroundings it does need: as
its clients' user it has to reach the daemon's socket, and it has to see a GPU; else it exits with status 1.
"""

from __future__ import annotations

import os
import sys

from partage.sim.mps.control import listens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run until the control daemon goes, or wants it gone. argv: user, and how many GPUs it sees."""
    become(int(argv[1]))
    if not listens(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) or int(argv[2]) == 0:
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

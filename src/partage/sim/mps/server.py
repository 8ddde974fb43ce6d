"""``nvidia-cuda-mps-server UID GPUS``: a process with the right name and user that ends with its input.

The control daemon does the bookkeeping of the clients. Like a real server it exits with status 1 if, as the
user of its clients, it cannot connect to the daemon's socket, or if it sees no GPU.
"""

from __future__ import annotations

import os
import sys

from partage.sim.mps.wire import daemon_listens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run until the control daemon ends or stops it. argv: user id, and the number of GPUs that it sees."""
    become_user(int(argv[1]))
    if not daemon_listens(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) or int(argv[2]) == 0:
        return 1
    os.write(1, b"ready\n")
    sys.stdin.buffer.read()
    return 0


def become_user(uid: int) -> None:
    """Become this user now and not before: only root may be able to read the interpreter. Raises OSError."""
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

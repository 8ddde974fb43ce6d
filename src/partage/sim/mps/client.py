"""A client of the simulated MPS daemon, in place of a program with CUDA.

As a program it reads one request a line (``allocate BYTES``, ``launch``, ``work``, ``fault``) and prints one
answer a line: ``ok``, or ``error`` with the name of CUDA's error. The first answer is about the connection.
With a user id as argument it runs as that user.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from partage.sim.mps.server import become_user

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
)


class CudaError(Exception):
    """A call failed. The text is the name of the CUDA error."""


_TIMEOUT_S = 10.0


class NoDaemon(Exception):
    """No daemon listens. A real program then works without MPS and its limits, if compute mode allows it."""


class MpsConnection:
    """The connection of a process to MPS, from cuInit to its end. Blocking."""

    def __init__(self, pipe: Path, env: Mapping[str, str]) -> None:
        """Waits until its user is served. Raises NoDaemon, CudaError, TimeoutError."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(_TIMEOUT_S)
        try:
            self._sock.connect(str(pipe / "control"))
            self._replies = self._sock.makefile("rb")
        except OSError as error:
            self._sock.close()
            raise NoDaemon(str(error)) from error
        try:
            self._call(env={name: env[name] for name in _VARIABLES if name in env})
        except (CudaError, TimeoutError):
            self.close()
            raise

    def allocate(self, amount_bytes: int) -> None:
        """Raises CudaError: over the client's limit, or more than the GPU has."""
        self._call(do="allocate", bytes=amount_bytes)

    def launch(self) -> None:
        """A kernel without fault. Raises CudaError after a fault of any client of the server."""
        self._call(do="launch")

    def work(self) -> None:
        """A kernel that does not end: the process has work in flight from now on. Raises CudaError."""
        self._call(do="work")

    def fault(self) -> None:
        """A kernel that writes to an invalid address. Raises CudaError."""
        self._call(do="fault")

    def close(self) -> None:
        """End the connection."""
        self._replies.close()
        self._sock.close()

    def _call(self, **request: object) -> None:
        try:
            self._sock.sendall(json.dumps(request).encode() + b"\n")
            reply = self._replies.readline()
        except ConnectionError:
            reply = b""
        error = json.loads(reply)["error"] if reply else "CUDA_ERROR_MPS_RPC_FAILURE"
        if error:
            raise CudaError(error)


def main(argv: Sequence[str]) -> int:
    """Run the program. The pipe directory comes from the environment, as for CUDA."""
    for uid in argv[1:]:
        become_user(int(uid))
    try:
        connection = MpsConnection(Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]), os.environ)
    except (CudaError, NoDaemon, TimeoutError) as error:
        _print(f"error {error}")
        return 1
    _print("ok")
    for line in sys.stdin:
        words = line.split()
        try:
            match words:
                case ["allocate", amount]:
                    connection.allocate(int(amount))
                case ["launch"]:
                    connection.launch()
                case ["work"]:
                    connection.work()
                case ["fault"]:
                    connection.fault()
            _print("ok")
        except CudaError as error:
            _print(f"error {error}")
    connection.close()
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

"""A client of the simulated MPS daemon: what CUDA does of this for a real program, without CUDA.

As a program it takes one request a line (``allocate BYTES``, ``launch``, ``fault``) and prints one answer a
line, ``ok`` or ``error`` with the name of CUDA's error; the first one says how its connection went. With a
user's number as argument it runs as that user.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from partage.sim.mps.server import become

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
)


class CudaError(Exception):
    """A call failed. The text is the name of CUDA's error."""


class NoDaemon(Exception):
    """Nobody listens. A real program would go on without MPS, and without limits, if compute mode lets it."""


class MpsConnection:
    """What a process has of MPS between cuInit and its end. Blocking."""

    def __init__(self, pipe: Path, env: Mapping[str, str], timeout_s: float = 10.0) -> None:
        """Waits for the turn of its user. Raises NoDaemon, Refused, TimeoutError."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(timeout_s)
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
        """Raises Refused: over the client's limit, or more than the GPU has."""
        self._call(do="allocate", bytes=amount_bytes)

    def launch(self) -> None:
        """A kernel that does no harm. Raises Refused after a fault, whoever's."""
        self._call(do="launch")

    def fault(self) -> None:
        """A kernel that writes where nothing is. Raises Refused."""
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
    """The program. The pipe directory comes as CUDA takes it, from the environment."""
    for uid in argv[1:]:
        become(int(uid))
    try:
        connection = MpsConnection(Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]), os.environ)
    except (CudaError, NoDaemon, TimeoutError) as error:
        _say(f"error {error}")
        return 1
    _say("ok")
    for line in sys.stdin:
        words = line.split()
        try:
            match words:
                case ["allocate", amount]:
                    connection.allocate(int(amount))
                case ["launch"]:
                    connection.launch()
                case ["fault"]:
                    connection.fault()
            _say("ok")
        except CudaError as refusal:
            _say(f"error {refusal}")
    connection.close()
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

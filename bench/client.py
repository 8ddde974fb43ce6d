"""Who calls the plugins: a program of its own that is told what to call, by lines of JSON.

In Go where Go is there, as the kubelet's client; else on grpcio. Both time their calls themselves.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import Message

GO_SOURCE = Path(__file__).parent / "goclient"
GO_BINARY = Path(__file__).parents[1] / "build" / "goclient"
_SERVICE = "/v1beta1.DevicePlugin/"


@dataclass(frozen=True)
class Call:
    """One call, as bytes on the wire."""

    method: str
    body: bytes


def call(method: str, request: Message) -> Call:
    """A call of one method of the device plugin."""
    return Call(_SERVICE + method, request.SerializeToString())


@dataclass(frozen=True)
class Answered:
    """Microseconds of every repetition, and the answers of the last one."""

    micros: list[float]
    bodies: list[bytes]

    @property
    def p50(self) -> float:
        return statistics.median(self.micros)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.micros, n=100)[98]


class CallFailed(Exception):
    """The plugin is away, or refused."""


class Client:
    """A client process. kind: how it is called in the table."""

    def __init__(self, kind: str, argv: Sequence[str]) -> None:
        self.kind = kind
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, socket: Path, calls: Sequence[Call], repeat: int = 1, warm: int = 0) -> Answered:
        """All calls in their order, so many times, after so many that are not timed. Raises CallFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        rows = [{"method": one.method, "body": base64.b64encode(one.body).decode()} for one in calls]
        line = json.dumps({"socket": str(socket), "calls": rows, "repeat": repeat, "warm": warm})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        if said["error"]:
            raise CallFailed(said["error"])
        return Answered(
            [nanoseconds / 1000 for nanoseconds in said["nanoseconds"]],
            [base64.b64decode(body or "") for body in said["bodies"]],
        )

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def go_binary() -> Path | None:
    """The Go program, built if need be; None where there is no Go, or no module can be fetched."""
    go = shutil.which("go")
    if go is None:
        return None
    environ = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
    command = [go, "build", "-o", str(GO_BINARY), "."]
    built = subprocess.run(command, cwd=GO_SOURCE, env=environ, capture_output=True, text=True, check=False)
    if built.returncode:
        sys.stderr.write(f"the Go client cannot be built:\n{built.stderr}\n")
        return None
    return GO_BINARY


@contextmanager
def client(go: Path | None) -> Iterator[Client]:
    """The best client there is, for the length of a block."""
    python = [sys.executable, "-m", "bench.grpcio_client"]
    caller = Client("Go", [str(go)]) if go else Client("grpcio", python)
    try:
        yield caller
    finally:
        caller.close()

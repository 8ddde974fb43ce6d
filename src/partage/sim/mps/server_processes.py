"""The processes of a simulated daemon's servers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from partage.model.mps import SERVER_PROGRAM


class ServerProcesses:
    """Starts servers and stops them. programs: directory of the server program. log: they keep it open."""

    def __init__(self, programs: Path, log: Path, environment: Mapping[str, str]) -> None:
        self._program = programs / SERVER_PROGRAM
        self._log = log.open("ab")
        self._environment = environment
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, uid: int, devices: int) -> tuple[int, IO[bytes]]:
        """A server for the clients of a user: its pid, and its output, which has data once it is ready."""
        process = subprocess.Popen(  # noqa: S603 - the program beside ours
            [self._program, str(uid), str(devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd="/",
            env=self._environment,
        )
        assert process.stdout is not None
        self._running[process.pid] = process
        return process.pid, process.stdout

    def stop(self, pid: int) -> None:
        """Tell a server to end: it ends with its standard input."""
        stdin = self._running[pid].stdin
        if stdin is not None and not stdin.closed:
            stdin.close()

    def ended(self, pid: int) -> int:
        """Forget a server that has closed its output; its exit code."""
        process = self._running.pop(pid)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait()

    def end_all(self) -> None:
        """Stop all servers and wait until they have ended."""
        for pid, process in self._running.items():
            self.stop(pid)
            process.wait()

"""A child process that is told what to do line by line, and that can always be ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence

_LONGEST_LINE = 16 * 2**20
_TAIL_BYTES = 2000


class ChildProcess:
    """A running process, leader of a process group of its own. The end of its stderr is kept."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stderr = bytearray()
        self._drain = asyncio.create_task(self._read_stderr(), name=f"stderr of {process.pid}")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def say(self, line: bytes) -> None:
        """Send a line. That the process has ended shows when its answer is read."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()

    async def hear(self) -> bytes:
        """The next line of its output; empty once it has closed it."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def last_words(self) -> str:
        """How it ended, with the last line of its stderr. Waits for its end."""
        code = await self._process.wait()
        await asyncio.wait({self._drain}, timeout=1.0)
        lines = bytes(self._stderr).decode(errors="replace").strip().splitlines()
        how = f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{how}: {lines[-1].strip()[:300]}" if lines else how

    async def end(self) -> None:
        """Kill it and whatever it started, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        self._drain.cancel()
        await asyncio.gather(self._drain, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(4096):
            self._stderr += chunk
            del self._stderr[:-_TAIL_BYTES]


async def start_child(argv: Sequence[str], environment: Mapping[str, str]) -> ChildProcess:
    """Start a process with exactly this environment. Raises OSError where that is not possible."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=dict(environment),
        start_new_session=True,
        limit=_LONGEST_LINE,
    )
    return ChildProcess(process)

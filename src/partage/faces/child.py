"""A process of ours that is ordered about by lines: begun, listened to with a deadline, ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence

_LONGEST_LINE = 16 * 2**20
_TAIL_BYTES = 2000


class Child:
    """A running process, leader of a group of its own. Of its stderr the last words are kept."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stderr = bytearray()
        self._drain = asyncio.create_task(self._read_stderr(), name=f"stderr of {process.pid}")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def say(self, line: bytes) -> None:
        """Tell it something. One that has ended says so when it is listened to."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()

    async def hear(self) -> bytes:
        """Its next line; empty once it has closed its output."""
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
        """It and whatever it started are gone afterwards."""
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


async def begin(argv: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start one with this environment and no other. Raises OSError where that cannot be."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=dict(environment),
        start_new_session=True,
        limit=_LONGEST_LINE,
    )
    return Child(process)

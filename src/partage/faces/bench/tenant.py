"""One tenant as a process of ours: begun, ordered about, listened to with a deadline, ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partage.faces.bench.model import Failure

WORKER = Path(__file__).with_name("worker.py")
_LONGEST_LINE = 16 * 2**20
_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Launch:
    """How tenants are begun. python: the interpreter; the others as the worker's options."""

    python: str
    engine: str = "torch"
    device: str = "cuda"

    @property
    def argv(self) -> tuple[str, ...]:
        return (self.python, str(WORKER), "--engine", self.engine, "--device", self.device)


class TenantFailed(Exception):
    """The tenant cannot go on; ``failure`` says how. Not an error of the bench: a result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.what}: {failure.message}")
        self.failure = failure


class Tenant:
    """A running worker. hello: its first event. start_s: from its start until then."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stderr = bytearray()
        self._drain = asyncio.create_task(self._read_stderr(), name=f"stderr of tenant {process.pid}")
        self._begun = time.monotonic()
        self.hello: dict[str, Any] = {}
        self.start_s = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    async def greet(self, deadline_s: float) -> None:
        """Wait until it can work. Raises TenantFailed."""
        self.hello = await self.event("hello", deadline_s)
        self.start_s = time.monotonic() - self._begun

    async def order(self, order: Mapping[str, object]) -> None:
        """Tell it what to do. One that has ended says so when it is listened to."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            await self._process.stdin.drain()

    async def event(self, name: str, deadline_s: float) -> dict[str, Any]:
        """Its next event, which is to be of that name. Raises TenantFailed."""
        try:
            async with asyncio.timeout(deadline_s):
                found = await self._next()
        except TimeoutError:
            said = f"it did not say {name!r} within {deadline_s:g} s"
            raise TenantFailed(Failure("hung", said)) from None
        if found is None:
            raise TenantFailed(Failure("died", await self._last_words()))
        if found["event"] != name:
            what = found.get("what")
            message = str(found.get("message", f"it said {found['event']!r} in place of {name!r}"))
            raise TenantFailed(Failure(what if what in ("oom", "error") else "error", message))
        return found

    async def end(self) -> None:
        """It and whatever it started are gone afterwards."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        self._drain.cancel()
        await asyncio.gather(self._drain, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _next(self) -> dict[str, Any] | None:
        """The next line that is an event: an image's own start-up may print what it likes before."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and isinstance(found.get("event"), str):
                    return found
        return None

    async def _last_words(self) -> str:
        code = await self._process.wait()
        await asyncio.wait({self._drain}, timeout=1.0)
        lines = bytes(self._stderr).decode(errors="replace").strip().splitlines()
        how = f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{how}: {lines[-1].strip()[:300]}" if lines else how

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(4096):
            self._stderr += chunk
            del self._stderr[:-_TAIL_BYTES]


async def begin(launch: Launch, environment: Mapping[str, str]) -> Tenant:
    """Start a tenant, in a process group of its own. Raises TenantFailed where that cannot be."""
    try:
        process = await asyncio.create_subprocess_exec(
            *launch.argv,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=dict(environment),
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
    except OSError as error:
        raise TenantFailed(Failure("died", f"{launch.python} cannot be run: {error.strerror}")) from error
    return Tenant(process)

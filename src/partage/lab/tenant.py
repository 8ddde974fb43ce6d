"""One tenant as a child process: it is started, asked line by line with a deadline, and always ended.

The tenant is ``tenant_program`` or the simulated MPS client; both answer in the words of ``tenant_program``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from partage.lab import child
from partage.values import Frozen

PROGRAM = Path(__file__).with_name("tenant_program.py")
OK = "ok"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_OUT_OF_MEMORY_WORDS = ("out of memory", "out_of_memory", "can't allocate memory", "not enough memory")
"""Each version of a framework words it differently."""


class TenantFailure(msgspec.Struct, frozen=True):
    """How a tenant failed.

    what: ``oom``; ``error``, another error that the tenant reports; ``died``; ``hung``, no answer in time.
    """

    what: str
    message: str


class TenantFailed(Exception):
    """A tenant did not do what it was asked for. That is a result of the experiment, not an error of ours."""

    def __init__(self, what: str, message: str) -> None:
        self.failure = TenantFailure(what, message)
        super().__init__(f"a tenant {message}")


class TenantLost(TenantFailed):
    """It died or hangs: what it would have answered is not known."""


class TenantRefused(TenantFailed):
    """It answers with an error. The text is the name of CUDA's error, or the framework's words."""

    def __init__(self, message: str) -> None:
        out_of_memory = any(words in message.lower() for words in _OUT_OF_MEMORY_WORDS)
        super().__init__("oom" if out_of_memory else "error", message)

    def __str__(self) -> str:
        return OUT_OF_MEMORY if self.failure.what == "oom" else self.failure.message


class NotConnected(TenantRefused):
    """It got no context on the GPU."""


class TenantLaunch(Frozen):
    """How tenants are started. python: the interpreter; engine and device: options of ``tenant_program``."""

    python: str
    engine: str = "torch"
    device: str = "cuda"

    def argv(self, uid: int | None = None) -> tuple[str, ...]:
        """The command line; uid: the user that the tenant runs as."""
        user = () if uid is None else (str(uid),)
        return (self.python, str(PROGRAM), "--engine", self.engine, "--device", self.device, *user)


class TenantProcess:
    """A running tenant. deadline_s: for one answer. start_s: from its start until it was connected."""

    def __init__(self, process: child.ChildProcess, deadline_s: float) -> None:
        self._child = process
        self._deadline_s = deadline_s
        self._began = time.monotonic()
        self._connecting: asyncio.Task[None] | None = None
        self.start_s = 0.0

    @property
    def pid(self) -> int:
        return self._child.pid

    async def connected(self, patience_s: float | None = None) -> bool:
        """Whether it has reached its device within ``patience_s``; one that still waits may be asked again.

        Raises NotConnected, and TenantLost: without ``patience_s`` also for a tenant that waits too long.
        """
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name=f"tenant {self.pid} connects")
        if patience_s is not None:
            done, _ = await asyncio.wait({self._connecting}, timeout=patience_s)
            if not done:
                return False
        await self._connecting
        return True

    async def ask(self, request: str, deadline_s: float | None = None) -> Any:  # noqa: ANN401 - JSON
        """The result of one request. Raises TenantRefused, TenantLost."""
        await self._child.say(request.encode())
        return await self._result(request, deadline_s or self._deadline_s)

    async def attempt(self, request: str) -> str:
        """``ok``, or why not: the name of CUDA's error or the framework's words. Raises TenantLost."""
        try:
            await self.ask(request)
        except TenantRefused as refused:
            return str(refused)
        return OK

    async def allocate(self, amount_bytes: int) -> str:
        """As ``attempt``."""
        return await self.attempt(f"allocate {amount_bytes}")

    async def end(self) -> None:
        """The tenant, and whatever it started, is gone afterwards."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self._child.end()

    async def _connect(self) -> None:
        try:
            await self._result("connect", self._deadline_s)
        except TenantRefused as refused:
            raise NotConnected(refused.failure.message) from refused
        self.start_s = time.monotonic() - self._began

    async def _result(self, request: str, deadline_s: float) -> Any:  # noqa: ANN401 - JSON
        try:
            async with asyncio.timeout(deadline_s):
                word, rest = await self._answer()
        except TimeoutError:
            verb = request.partition(" ")[0]
            raise TenantLost("hung", f"did not answer {verb!r} within {deadline_s:g} s") from None
        if not word:
            raise TenantLost("died", await self._child.last_words())
        if word == "error":
            raise TenantRefused(rest)
        return json.loads(rest) if rest else None

    async def _answer(self) -> tuple[str, str]:
        """The next line that is an answer: a container image may print lines of its own at its start.

        Empty once the tenant has closed its output.
        """
        while line := await self._child.hear():
            word, _, rest = line.decode(errors="replace").strip().partition(" ")
            if word in (OK, "error"):
                return word, rest
        return "", ""


async def start_tenant(
    argv: Sequence[str], environment: Mapping[str, str], deadline_s: float
) -> TenantProcess:
    """Start a tenant in a process group of its own. Raises TenantLost where that is not possible."""
    try:
        return TenantProcess(await child.start_child(argv, environment), deadline_s)
    except OSError as error:
        raise TenantLost("died", f"cannot be run: {argv[0]}: {error.strerror}") from error

"""One tenant as a child process: it is started, asked line by line with a deadline, and always ended.

The tenant is ``tenant_program`` or the simulated MPS client; both answer in the words of ``tenant_program``.
The first Python that has PyTorch for the device runs it: to find torch takes milliseconds; only where it is
found, it is imported, which takes seconds.

How much memory it is asked to allocate has to say something about a limit, which counts what CUDA itself
needs, too. NVIDIA's Dynamo project measured clients under limits of 2 to 30 GiB on driver 615.71: 250 to
820 MiB of the limit were not to be had. Drivers give memory out in pieces of 2 MiB.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from partage.errors import HardwareError, InputError
from partage.lab import child
from partage.units import GIB, MIB
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


CUDA_NEEDS_BYTES = GIB
"""More than any process was seen to lose to CUDA's own needs."""

_GRANULE_BYTES = 2 * MIB
_PIECES = 16


def data_bytes(limit_bytes: int) -> int:
    """What a client surely has for its data: five sixths of its limit, of a small one all but 1 GiB.

    0 where the limit may be used up before any data.
    """
    return _whole(max(min(limit_bytes * 5 // 6, limit_bytes - CUDA_NEEDS_BYTES), 0))


def piece_bytes(limit_bytes: int) -> int:
    """About a sixteenth of a limit, in whole granules: so many pieces tell a limit from its neighbourhood."""
    return max(_whole(limit_bytes // _PIECES), _GRANULE_BYTES)


def beyond_bytes(limit_bytes: int) -> int:
    """How far beyond a limit is tried: a quarter of it."""
    return limit_bytes * 5 // 4


def has_room(amount_bytes: int, device_bytes: int) -> bool:
    """Whether a device has so much besides what CUDA needs: then it is not the device that refuses."""
    return amount_bytes <= min(device_bytes * 9 // 10, device_bytes - CUDA_NEEDS_BYTES)


def _whole(amount_bytes: int) -> int:
    return amount_bytes // _GRANULE_BYTES * _GRANULE_BYTES


_IS_THERE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_SEES_CUDA = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"
_HAS_LIBCUDA = "import ctypes; ctypes.CDLL('libcuda.so.1')"
_FIND_S, _IMPORT_S = 20, 90
_RECORDED = "partage bench --read FILE shows a recorded run"


def find_python(named: str | None, device: str, engine: str, otherwise: str = _RECORDED) -> str:
    """The path of the interpreter. otherwise: what else can be done, where there is none.

    Raises InputError (it cannot run), HardwareError (none has it).
    """
    if engine != "torch":
        return _with_libcuda(named or sys.executable) if device == "cuda" else named or sys.executable
    if named is not None and shutil.which(named) is None:
        raise InputError(f"{named} cannot be run", "--python names the interpreter that has PyTorch")
    candidates = [named] if named is not None else [sys.executable, shutil.which("python3")]
    reasons: list[str] = []
    for python in dict.fromkeys(path for path in candidates if path):
        reason = _unfit(python, device)
        if not reason:
            return python
        reasons.append(f"{python}: {reason}")
    raise HardwareError(
        f"no Python here has PyTorch{' with CUDA' if device == 'cuda' else ''} ({'; '.join(reasons)})",
        f"--python PATH names one that has; {otherwise}",
    )


def _with_libcuda(python: str) -> str:
    """The interpreter, if it can load the driver's CUDA library. Raises HardwareError."""
    if _exit_code(python, _HAS_LIBCUDA, _FIND_S) == 0:
        return python
    raise HardwareError(
        f"{python} cannot load libcuda.so.1, the driver's CUDA library: no tenant can use a GPU",
        "it comes with the driver's compute packages; containers need NVIDIA_DRIVER_CAPABILITIES=compute",
    )


def _unfit(python: str, device: str) -> str:
    """Why not this one; empty where it fits."""
    if code := _exit_code(python, _IS_THERE, _FIND_S):
        return "no torch" if code == 1 else "it does not run"
    if device == "cpu":
        return ""
    code = _exit_code(python, _SEES_CUDA, _IMPORT_S)
    return {0: "", 3: "its torch sees no GPU"}.get(code, "its torch cannot be imported")


def _exit_code(python: str, program: str, limit_s: float) -> int:
    """Its exit code; -1 where it does not end in time, or not at all."""
    try:
        return subprocess.run(  # noqa: S603 - the operator's own interpreter
            [python, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return -1

"""What a step gets, and what it says while it looks: what is noted is kept, also when it is killed later."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from partage.codec.values import encode_replacing
from partage.edges.host.own_task import end_group
from partage.lab.place import TenantMode, TenantPlace
from partage.lab.tenant import TenantLaunch, TenantProcess, start_tenant
from partage.model.ids import GpuUuid
from partage.values import Frozen
from tools.on_gpu.journal import OriginalGpu
from tools.on_gpu.result import Finding, Verdict

TENANT_S = 60.0
"""For one answer of a tenant: the first context on a cold GPU takes seconds."""
_VERB_TAIL = 2000


class StepPlace(Frozen):
    """Where a step works. directory: of its own, removed afterwards. root: where the driver is.

    torch: an interpreter with PyTorch that sees the GPU; empty: there is none. original: how the GPU was set
    before the run, which the runner puts back; None: nothing may be changed.
    """

    directory: str
    root: str
    gpu: GpuUuid
    memory_bytes: int
    torch: str = ""
    original: OriginalGpu | None = None

    @property
    def work(self) -> Path:
        return Path(self.directory)

    @property
    def driver_root(self) -> Path:
        return Path(self.root)

    @property
    def run_dir(self) -> Path:
        """Of agents and MPS daemons."""
        return self.work / "run"

    def tenants(self, pipe: Path | None = None, device: str = "") -> TenantPlace:
        """Where tenants of the GPU run, or of a MIG device of it."""
        return TenantPlace(
            device=GpuUuid(device) or self.gpu,
            pipe=pipe,
            memory_bytes=self.memory_bytes,
            driver_root=self.driver_root,
        )

    async def tenant(
        self, pipe: Path | None = None, device: str = "", before: tuple[str, ...] = ()
    ) -> TenantProcess:
        """A tenant without PyTorch that has a context. before: a program that becomes it.

        Raises NotConnected, TenantLost.
        """
        mode = TenantMode.ALONE if pipe is None else TenantMode.MPS
        argv = (*before, *TenantLaunch(sys.executable, "cuda").argv())
        tenant = await start_tenant(argv, self.tenants(pipe, device).environment(mode), TENANT_S)
        try:
            await tenant.connected()
        except BaseException:
            await tenant.end()
            raise
        return tenant


class StepAnswer(Frozen):
    """What a step has said so far."""

    findings: tuple[Finding, ...] = ()
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class Notes:
    """Fills an answer; every word is in the file when the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._findings: list[Finding] = []
        self._data: dict[str, Any] = {}

    def seen(self, row: str, words: str) -> None:
        self._note(Finding(row, Verdict.SEEN, words))

    def contradicted(self, row: str, words: str) -> None:
        self._note(Finding(row, Verdict.CONTRADICTED, words))

    def not_here(self, row: str, takes: str) -> None:
        """takes: which driver, setting, GPU or right it takes."""
        self._note(Finding(row, Verdict.NOT_HERE, takes))

    def judge(self, row: str, good: bool, words: str) -> None:
        (self.seen if good else self.contradicted)(row, words)

    def keep(self, name: str, value: object) -> None:
        """Measured or read; anything that is JSON, or a value of ours."""
        self._data[name] = value
        self._save()

    @property
    def rows(self) -> frozenset[str]:
        return frozenset(finding.row for finding in self._findings)

    def _note(self, finding: Finding) -> None:
        self._findings.append(finding)
        self._save()

    def _save(self) -> None:
        beside = self._path.with_suffix(".new")
        beside.write_bytes(encode_replacing(StepAnswer(tuple(self._findings), self._data)))
        beside.replace(self._path)


class Said(Frozen):
    """What a program said. code: -1: it did not end in time."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Its error in one line."""
        return " ".join((self.err or self.out).split())[-_VERB_TAIL:] or f"exit code {self.code}"


async def ask(*argv: str, limit_s: float, **environment: str) -> Said:
    """Run a program to its end. Raises OSError where it cannot be run."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    except TimeoutError:
        return Said(-1, "", f"did not end within {limit_s:g} s")
    finally:
        await end_group(process)
    return Said(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


async def partage(place: StepPlace, verb: str, *arguments: str, limit_s: float, root: bool = True) -> Said:
    """A verb of Partage, by this Python. root: it takes ``--driver-root``."""
    where = ("--driver-root", str(place.driver_root)) if root else ()
    return await ask(sys.executable, "-P", "-m", "partage", verb, *where, *arguments, limit_s=limit_s)

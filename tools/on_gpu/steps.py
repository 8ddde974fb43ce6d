"""All steps in their order, and what each needs; ``python -m tools.on_gpu.steps`` is the child that runs
one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from partage.codec.values import decode, encode
from partage.edges.hardware.port import Hardware
from partage.errors import DriverUnavailable, PartageError
from partage.lab.gpus import find_gpu, is_workload
from partage.lab.tenant import find_python
from partage.model.gpu import ComputeMode, Driver, Gpu, NoDriver
from partage.values import Frozen
from tools.on_gpu import change_steps, limit_steps, look_steps, mps_steps, tenant_steps
from tools.on_gpu.journal import OriginalGpu
from tools.on_gpu.notes import Notes, StepPlace
from tools.on_gpu.put_back import found, opened, original_of
from tools.on_gpu.result import SeenMachine
from tools.on_gpu.rows import rows_of


class Need(StrEnum):
    """What a step takes. The values are words for people: "takes ..."."""

    ROOT = "root"
    CUDA = "libcuda.so.1, the driver's CUDA library"
    TORCH = "a Python that has PyTorch with CUDA (--python)"
    IDLE = "a GPU that nothing else uses"
    WHOLE = "a GPU whose MIG mode is off"
    DEFAULT_MODE = "default compute mode"
    CONTEXTS = "a compute mode other than prohibited"


@dataclass(frozen=True, slots=True)
class Step:
    """One step. limit_s: it is killed then. changes: it changes settings.

    by_kind: what it sees is the same on every machine of this model and driver; else it is done anew on each.
    """

    name: str
    act: Callable[[StepPlace, Notes], Awaitable[None]]
    limit_s: float
    needs: tuple[Need, ...] = ()
    by_kind: bool = False
    changes: bool = False


_TENANTS = (Need.CUDA, Need.IDLE, Need.WHOLE)
_MPS = (Need.IDLE, Need.WHOLE, Need.CONTEXTS)

STEPS = (
    Step("driver", look_steps.driver, 120),
    Step("compare", look_steps.compare, 120),
    Step("record", look_steps.record, 150),
    Step("exporter", look_steps.exporter, 90),
    Step("mps", mps_steps.mps, 240, (*_MPS, Need.CUDA), by_kind=True),
    Step("mps-environment", mps_steps.mps_environment, 60, _MPS, by_kind=True),
    Step("read-only-pipe", mps_steps.read_only_pipe, 150, (*_MPS, Need.CUDA, Need.ROOT), by_kind=True),
    Step("time-slicing", tenant_steps.time_slicing, 120, (*_TENANTS, Need.DEFAULT_MODE), by_kind=True),
    Step("memory", tenant_steps.memory, 90, (*_TENANTS, Need.CONTEXTS), by_kind=True),
    Step("limits", limit_steps.limits, 60),
    Step("limits-hold", limit_steps.limits_hold, 150, (Need.ROOT, *_TENANTS, Need.DEFAULT_MODE)),
    Step("guard", tenant_steps.guard, 150, (*_TENANTS, Need.TORCH, Need.DEFAULT_MODE), by_kind=True),
    Step("bench", tenant_steps.bench, 300, (*_TENANTS, Need.DEFAULT_MODE)),
    Step("bench-mps", mps_steps.bench_mps, 300, (*_TENANTS, Need.DEFAULT_MODE)),
    Step("xid", tenant_steps.xid, 90, (*_TENANTS, Need.CONTEXTS), by_kind=True),
    Step("mps-ends", mps_steps.mps_ends, 300, (*_MPS, Need.CUDA), by_kind=True),
    Step("geometry", look_steps.geometry, 60, by_kind=True),
    Step("change-mode", change_steps.change_mode, 120, (Need.ROOT, *_TENANTS), by_kind=True, changes=True),
    Step("change-slices", change_steps.change_slices, 90, (Need.ROOT,), by_kind=True, changes=True),
    Step("change-mig", change_steps.change_mig, 280, (Need.ROOT, *_TENANTS), by_kind=True, changes=True),
)
"""In order of what matters: the most is known where the hour ends early. Changes come last."""

IDENTIFY = "identify"
IDENTIFY_S = 150.0
"""The first look at eight cold GPUs takes seconds; to import PyTorch takes longer."""


class Identity(Frozen):
    """What the first look says. original: how the GPU is set now. torch: as in ``StepPlace``.

    several: how many GPUs the machine has.
    """

    machine: SeenMachine
    memory_bytes: int
    original: OriginalGpu
    torch: str
    several: int


class IdentifyRequest(Frozen):
    """gpu: index or UUID; None: the first. python: the interpreter that has PyTorch; None: look for one."""

    directory: str
    root: str
    gpu: str | None
    python: str | None


async def identify(asked: IdentifyRequest) -> Identity:
    """Raises DriverUnavailable, HardwareError, InputError, Unsatisfiable."""
    async with opened(Path(asked.root), Path(asked.directory) / "run") as hardware:
        inventory = await hardware.observe()
        if isinstance(inventory.driver, NoDriver):
            reason, hint = inventory.driver.reason, inventory.driver.hint
            raise DriverUnavailable(f"there is no GPU to look at here: {reason}", hint)
        gpu = find_gpu(inventory, asked.gpu)
        original = await original_of(hardware, gpu)
    return Identity(
        machine=_machine(gpu, inventory.driver),
        memory_bytes=gpu.memory_bytes,
        original=original,
        torch=_torch(asked.python),
        several=len(inventory.gpus),
    )


def _machine(gpu: Gpu, driver: Driver) -> SeenMachine:
    system = os.uname()
    return SeenMachine(
        host=_host(system.nodename),
        gpu=gpu.uuid,
        product=gpu.product,
        driver=driver.version,
        cuda=driver.cuda,
        kernel=f"{system.sysname} {system.release} {system.machine}",
        python=".".join(map(str, sys.version_info[:3])),
        root=os.geteuid() == 0,
    )


def _host(name: str) -> str:
    """A name that tells machines apart and says nothing of them: the result is for everybody to read."""
    with suppress(OSError, ValueError):
        name += Path("/etc/machine-id").read_text(encoding="ascii").strip()
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _torch(named: str | None) -> str:
    """Raises InputError for a named interpreter that cannot run."""
    try:
        return find_python(named, "cuda", "torch")
    except PartageError:
        if named is not None:
            raise
        return ""


async def lacking(step: Step, place: StepPlace) -> str:
    """The first thing that a step needs and this machine has not now; empty: it has all."""
    if not step.needs:
        return ""
    async with opened(place.driver_root, place.run_dir) as hardware:
        gpu = await found(hardware, place.gpu)
        for need in step.needs:
            if why := await _why_not(need, place, gpu, hardware):
                return f"{need.value}{'' if why is True else f': {why}'}"
    return ""


async def _why_not(need: Need, place: StepPlace, gpu: Gpu, hardware: Hardware) -> str | bool:
    """Whether something is needed that is not there; or how it is instead."""
    match need:
        case Need.ROOT:
            return os.geteuid() != 0
        case Need.CUDA:
            return _no_cuda()
        case Need.TORCH:
            return not place.torch
        case Need.IDLE:  # processes of other containers are not seen from inside of one
            uses = await hardware.uses()
            return ", ".join(str(use) for use in uses if use.gpu == gpu.uuid and is_workload(use))
        case Need.WHOLE:
            return gpu.mig_enabled
        case Need.DEFAULT_MODE:
            return "" if gpu.compute_mode is ComputeMode.DEFAULT else gpu.compute_mode.word
        case Need.CONTEXTS:
            return gpu.compute_mode is ComputeMode.PROHIBITED
        case _:
            assert_never(need)


def _no_cuda() -> str:
    try:
        find_python(sys.executable, "cuda", "cuda")
    except PartageError as error:
        return str(error)
    return ""


async def carry_out(step: Step, place: StepPlace, notes: Notes) -> None:
    """Look, or say what it takes; every row of the step gets a word."""
    if takes := await lacking(step, place):
        for row in rows_of(step.name):
            notes.not_here(row.key, takes)
        return
    await step.act(place, notes)
    for row in rows_of(step.name):
        if row.key not in notes.rows:
            notes.not_here(row.key, "that what its step looks at before is as expected")


def main(arguments: list[str]) -> int:
    """``NAME REQUEST ANSWER``: the request is JSON; the answer is written to that file. Exit code of an
    error.
    """
    name, request, answer = arguments
    try:
        if name == IDENTIFY:
            identity = asyncio.run(identify(decode(IdentifyRequest, request.encode())))
            Path(answer).write_bytes(encode(identity))
        else:
            step = next(step for step in STEPS if step.name == name)
            asyncio.run(carry_out(step, decode(StepPlace, request.encode()), Notes(Path(answer))))
    except PartageError as error:
        sys.stderr.write("".join(f"{problem.message}\n{problem.hint}\n" for problem in error.problems))
        return error.exit_code
    return 0


if __name__ == "__main__":
    # A thread may hang in the driver: the interpreter would wait for it.
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)

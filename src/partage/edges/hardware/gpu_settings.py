"""Settings of a GPU that change at once: its compute mode, through NVML, and the length of its time slice,
through ``nvidia-smi compute-policy`` (NVML has no call for it). Both are lost at a reboot.

The compute mode says which processes may create contexts. The driver sets exclusive-process mode although
contexts exist: they keep running, and the next one is refused. An MPS server, for example, cannot start then.
So processes with contexts are listed first. Without persistence mode the mode is default again already when
the last client of the GPU has gone (nvml.h, nvmlDeviceSetComputeMode): an MPS server is such a client, and so
is a session of NVML.

Time slices: for drivers since R455 (CUDA 11.1). Some GPUs answer "Not Supported", for example the Tesla P4.
The output format of nvidia-smi is not documented and may change, so each GPU is queried separately and only
the name of the interval is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from partage.edges.hardware.host import Host
from partage.edges.hardware.nvidia_smi import SmiOutput, run_nvidia_smi
from partage.errors import GpuInUse, HardwareError, NotPermitted, StateMismatch, Unsupported
from partage.model.gpu import ComputeMode
from partage.model.gpu_use import GpuProcess, GpuUse, ProcessKind, UseKind
from partage.model.ids import GpuUuid
from partage.model.step import SetComputeMode, SetTimeSlice, TimeSlice, reverse
from partage.model.strategy import Interval

if TYPE_CHECKING:
    from partage.edges.hardware.gpu_queries import Handle
    from partage.edges.hardware.nvml_queries import Nvml


_CALL = "nvmlDeviceSetComputeMode"


def set_compute_mode(nvml: Nvml, host: Host, step: SetComputeMode, handle: Handle) -> None:
    """Set the mode and read it back. Nothing is done if it is set already.

    Raises StateMismatch if the mode is neither the one of the step nor the one before it; GpuInUse with the
    processes whose contexts block it (the mode is then as before); Unsupported, NotPermitted.
    """
    now = nvml.compute_mode(handle)
    if now == step.mode:
        return
    if now != step.before:
        raise StateMismatch(f"the compute mode of GPU {step.gpu} is {now.word}, not {step.before.word}")
    _refuse_if_blocked(nvml, host, step)
    _set(nvml, host, step, handle)
    try:
        _refuse_if_blocked(nvml, host, step)  # a process may have started before the mode was set
    except GpuInUse:
        back = reverse(step)
        assert isinstance(back, SetComputeMode)
        _set(nvml, host, back, handle)
        raise


def blocking_processes(rows: tuple[GpuProcess, ...], gpu: GpuUuid) -> tuple[GpuProcess, ...]:
    """Processes with contexts that block an MPS server, or a process that is to have the GPU alone.

    Without MPS servers and their clients, for which the mode is set, and graphics, which no mode affects.
    """
    return tuple(row for row in rows if row.gpu == gpu and row.kind is ProcessKind.COMPUTE)


def refuse_if_blocked(rows: tuple[GpuProcess, ...], step: SetComputeMode) -> None:
    """Raise GpuInUse if a process blocks the step. Nothing blocks default mode."""
    if step.mode is ComputeMode.DEFAULT:
        return
    blocking = blocking_processes(rows, step.gpu)
    if blocking:
        who = tuple(str(GpuUse(row.gpu, UseKind.PROCESS, row.name or "unknown", row.pid)) for row in blocking)
        raise GpuInUse(
            f"cannot {step} on {step.gpu}: {', '.join(who)} use it and would keep running",
            "stop them, or leave the mode alone (exclusive-process: false)",
            uses=who,
        )


def _refuse_if_blocked(nvml: Nvml, host: Host, step: SetComputeMode) -> None:
    if step.mode is not ComputeMode.DEFAULT:
        from partage.edges.hardware.processes import processes

        refuse_if_blocked(processes(nvml, host).rows, step)


def _set(nvml: Nvml, host: Host, step: SetComputeMode, handle: Handle) -> None:
    from partage.edges.hardware.checked_change import change_and_check

    change_and_check(
        nvml,
        host,
        step,
        lambda: nvml.call(_CALL, handle, int(step.mode)),
        lambda: nvml.compute_mode(handle) == step.mode or None,
    )


DEADLINE_S = 8.0
"""For one call of nvidia-smi, which takes about a second without persistence mode; less than a call's
deadline.
"""

NUMBERS = {Interval.DEFAULT: "0", Interval.SHORT: "1", Interval.MEDIUM: "2", Interval.LONG: "3"}
"""Values of ``--set-timeslice``. Source: ``nvidia-smi compute-policy --help``."""

HINT = "leave interval out for this GPU: its time slice cannot be set"
_PURPOSE = "the length of a time slice"
_INTERVALS = re.compile(r"\b(default|short|medium|long)\b", re.IGNORECASE)


async def time_slices(host: Host, gpus: Iterable[GpuUuid]) -> tuple[TimeSlice, ...]:
    """The time slice of each GPU, by UUID, all read concurrently; if one cannot be read, the reason."""
    return tuple(await asyncio.gather(*(_slice_of(host, gpu) for gpu in gpus)))


async def set_time_slice(host: Host, step: SetTimeSlice) -> None:
    """Set the interval and read it back. Nothing is done if it is set already.

    Raises StateMismatch if it is neither the one of the step nor the one before it, or not the one of the
    step afterwards; Unsupported, NotPermitted, HardwareTimeout.
    """
    now = await _read(host, step.gpu)
    if now is step.interval:
        return
    if now is not step.before:
        raise StateMismatch(f"the time slice of GPU {step.gpu} is {now}, not {step.before}")
    result = await _ask(host, "-i", step.gpu, "--set-timeslice", NUMBERS[step.interval])
    now = await _read(host, step.gpu)
    if now is step.interval:
        return
    if result.code:
        raise time_slice_error(f"cannot {step} on {step.gpu}", result)
    raise StateMismatch(
        f"nvidia-smi reported success for: {step}; read again, the slice of {step.gpu} is {now}"
    )


async def _slice_of(host: Host, gpu: GpuUuid) -> TimeSlice:
    try:
        return TimeSlice(gpu, await _read(host, gpu))
    except HardwareError as error:
        return TimeSlice(gpu, None, error.problems[0].message)


async def _read(host: Host, gpu: GpuUuid) -> Interval:
    return parse_interval(gpu, await _ask(host, "-i", gpu, "--list"))


async def _ask(host: Host, *arguments: str) -> SmiOutput:
    return await run_nvidia_smi(host, _PURPOSE, "compute-policy", *arguments, deadline_s=DEADLINE_S)


def parse_interval(gpu: GpuUuid, result: SmiOutput) -> Interval:
    """The interval in nvidia-smi's list for one GPU. Raises StateMismatch if there is none or more than
    one.
    """
    if result.code or _not_supported(result.output):
        raise time_slice_error(f"the time slice of {gpu} cannot be read", result)
    found = {name.lower() for name in _INTERVALS.findall(result.output)}
    if len(found) != 1:
        raise StateMismatch(f"the time slice of {gpu} cannot be read: nvidia-smi printed {result}")
    return Interval(found.pop())


def time_slice_error(what: str, result: SmiOutput) -> HardwareError:
    """The error for nvidia-smi's output."""
    message = f"{what}: {result}"
    if _not_supported(result.output):
        return Unsupported(message, HINT)
    if "permission" in result.output.lower():
        return NotPermitted(message, "root is needed")
    return StateMismatch(message)


def _not_supported(output: str) -> bool:
    low = output.lower()
    return "not supported" in low or "n/a" in low

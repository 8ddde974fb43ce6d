"""The length of a GPU's time slice, through ``nvidia-smi compute-policy`` (NVML has no call for it).

It is a setting of the GPU, for drivers since R455 (CUDA 11.1). Some GPUs answer "Not Supported", for
example the Tesla P4. It is lost at a reboot. The output format of nvidia-smi is not documented and may
change, so each GPU is queried separately and only the name of the interval is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

from partage.edges.hardware.host import Host
from partage.edges.hardware.nvidia_smi import SmiOutput, run_nvidia_smi
from partage.errors import HardwareError, NotPermitted, StateMismatch, Unsupported
from partage.model.ids import GpuUuid
from partage.model.step import SetTimeSlice, TimeSlice
from partage.model.strategy import Interval

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

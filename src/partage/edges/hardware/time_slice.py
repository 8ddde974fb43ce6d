"""The length of a GPU's time slice: NVML has no call for it, ``nvidia-smi compute-policy`` has.

It is a setting of a GPU, of drivers since R455 (CUDA 11.1), and not of every GPU: some say "Not Supported",
a Tesla P4 for one. It does not outlive a reboot. How nvidia-smi lays its list out is written down nowhere and
may change, so each GPU is asked for by itself, and its answer read for the one word that matters.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

from partage.edges.hardware import nvidia_smi
from partage.edges.hardware.host import Host
from partage.edges.hardware.nvidia_smi import SmiOutput
from partage.errors import HardwareError, NotPermitted, StateMismatch, Unsupported
from partage.model.policy import Interval
from partage.model.step import SetTimeSlice, TimeSlice

DEADLINE_S = 8.0
"""For one call of nvidia-smi, a second or so without persistence mode; less than a call may take."""

NUMBERS = {Interval.DEFAULT: "0", Interval.SHORT: "1", Interval.MEDIUM: "2", Interval.LONG: "3"}
"""What ``--set-timeslice`` wants. Source: ``nvidia-smi compute-policy --help``."""

HINT = "leave interval out for this GPU: its driver keeps the slice length to itself"
_PURPOSE = "the length of a time slice"
_INTERVALS = re.compile(r"\b(default|short|medium|long)\b", re.IGNORECASE)


async def time_slices(host: Host, gpus: Iterable[str]) -> tuple[TimeSlice, ...]:
    """The slice of each GPU, by UUID, all asked at once; where it cannot be read, why."""
    return tuple(await asyncio.gather(*(_slice_of(host, gpu) for gpu in gpus)))


async def set_time_slice(host: Host, step: SetTimeSlice) -> None:
    """Set it and read it back. Already so: nothing is done.

    Raises StateMismatch where it is neither the one that is wanted nor the one before, or not afterwards what was
    asked for, Unsupported, NotPermitted, HardwareTimeout.
    """
    now = await _read(host, step.gpu)
    if now is step.interval:
        return
    if now is not step.before:
        raise StateMismatch(f"the time slice of GPU {step.gpu} is {now}, not {step.before}")
    said = await _ask(host, "-i", step.gpu, "--set-timeslice", NUMBERS[step.interval])
    now = await _read(host, step.gpu)
    if now is step.interval:
        return
    if said.code:
        raise time_slice_error(f"cannot {step} on {step.gpu}", said)
    raise StateMismatch(
        f"nvidia-smi reported success for: {step}; read again, the slice of {step.gpu} is {now}"
    )


async def _slice_of(host: Host, gpu: str) -> TimeSlice:
    try:
        return TimeSlice(gpu, await _read(host, gpu))
    except HardwareError as error:
        return TimeSlice(gpu, None, error.problems[0].message)


async def _read(host: Host, gpu: str) -> Interval:
    return parse_interval(gpu, await _ask(host, "-i", gpu, "--list"))


async def _ask(host: Host, *arguments: str) -> SmiOutput:
    return await nvidia_smi.run(host, _PURPOSE, "compute-policy", *arguments, deadline_s=DEADLINE_S)


def parse_interval(gpu: str, said: SmiOutput) -> Interval:
    """The slice that the list of one GPU names. Raises StateMismatch where it names none, or several."""
    if said.code or _not_supported(said.output):
        raise time_slice_error(f"the time slice of {gpu} cannot be read", said)
    words = {mode_name.lower() for mode_name in _INTERVALS.findall(said.output)}
    if len(words) != 1:
        raise StateMismatch(f"the time slice of {gpu} cannot be read: nvidia-smi says {said}")
    return Interval(words.pop())


def time_slice_error(what: str, said: SmiOutput) -> HardwareError:
    """The error for what nvidia-smi said."""
    message = f"{what}: {said}"
    if _not_supported(said.output):
        return Unsupported(message, HINT)
    if "permission" in said.output.lower():
        return NotPermitted(message, "root is needed")
    return StateMismatch(message)


def _not_supported(words: str) -> bool:
    low = words.lower()
    return "not supported" in low or "n/a" in low

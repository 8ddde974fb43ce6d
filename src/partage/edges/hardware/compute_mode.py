"""A GPU's compute mode: who may open contexts on it. NVML sets it at once, and asks nobody.

The driver does not refuse exclusive-process mode while contexts live: they go on, and it is the next one that
is refused. For an MPS server that means: it cannot start. So whoever has a context is found first and named.
Under Linux the mode is default again after a reboot (nvml.h, nvmlDeviceSetComputeMode).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from partage.errors import GpuInUse, HardwareError, StateMismatch
from partage.model.gpu import ComputeMode
from partage.model.process import GpuProcess, ProcessKind
from partage.model.step import GpuUse, SetComputeMode, UseKind

if TYPE_CHECKING:  # the simulation refuses in the same words, and has no driver to bind
    from partage.edges.hardware.host import Host
    from partage.edges.hardware.readings import Handle, Nvml

_CALL = "nvmlDeviceSetComputeMode"


def set_compute_mode(nvml: Nvml, host: Host, step: SetComputeMode, handle: Handle) -> None:
    """Set it and read it back. Already so: nothing is done.

    Raises StateMismatch where the mode is neither the one that is wanted nor the one before, GpuInUse with those
    whose contexts are in the way (the mode is then as before), Unsupported, NotPermitted.
    """
    now = nvml.compute_mode(handle)
    if now == step.mode:
        return
    if now != step.before:
        raise StateMismatch(
            f"the compute mode of GPU {step.gpu} is {mode_name(now)}, not {mode_name(step.before)}"
        )
    _refuse_if_blocked(nvml, host, step)
    _set(nvml, handle, step.mode, str(step))
    try:
        _refuse_if_blocked(nvml, host, step)  # somebody may have been quicker than the mode
    except GpuInUse:
        _set(nvml, handle, step.before, "give the compute mode back")
        raise


def mode_name(mode: ComputeMode) -> str:
    """``exclusive-process``."""
    return mode.name.lower().replace("_", "-")


def blocking_processes(rows: tuple[GpuProcess, ...], gpu: str) -> tuple[GpuProcess, ...]:
    """Whose contexts keep an MPS server, or whoever shall have the GPU alone, from it.

    Not MPS servers and their clients: it is for them. Not graphics: no mode concerns it.
    """
    return tuple(row for row in rows if row.gpu == gpu and row.kind is ProcessKind.COMPUTE)


def refuse_if_blocked(rows: tuple[GpuProcess, ...], step: SetComputeMode) -> None:
    """Raise GpuInUse where somebody is in the way of the step. Default mode is in nobody's way."""
    if step.mode is ComputeMode.DEFAULT:
        return
    blocking = blocking_processes(rows, step.gpu)
    if blocking:
        who = tuple(str(GpuUse(row.gpu, UseKind.PROCESS, row.name or "unknown", row.pid)) for row in blocking)
        raise GpuInUse(
            f"cannot {step} on {step.gpu}: {', '.join(who)} work on it, and would go on beside",
            "stop them, or leave the mode alone (exclusive-process: false)",
            uses=who,
        )


def _refuse_if_blocked(nvml: Nvml, host: Host, step: SetComputeMode) -> None:
    if step.mode is not ComputeMode.DEFAULT:
        from partage.edges.hardware.processes import processes

        refuse_if_blocked(processes(nvml, host).rows, step)


def _set(nvml: Nvml, handle: Handle, mode: ComputeMode, what: str) -> None:
    refusal = _attempt(lambda: nvml.call(_CALL, handle, int(mode)))
    now = nvml.compute_mode(handle)
    if now == mode:
        return
    if refusal is None:
        raise StateMismatch(
            f"the driver reported success for: {what}; read again, the mode is {mode_name(now)}"
        )
    problem = refusal.problems[0]
    raise type(refusal)(
        f"cannot {what}: {problem.message}; it is {mode_name(now)}", problem.hint
    ) from refusal


def _attempt(call: Callable[[], object]) -> HardwareError | None:
    try:
        call()
    except HardwareError as error:
        return error
    return None

"""The compute mode of a GPU: which processes may create contexts on it. NVML changes it at once.

The driver sets exclusive-process mode although contexts exist: they keep running, and the next one is
refused. An MPS server, for example, cannot start then. So processes with contexts are listed first. The
mode is default again after a reboot (nvml.h, nvmlDeviceSetComputeMode), and without persistence mode already
when the last client of the GPU has gone: an MPS server is such a client, and so is a session of NVML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage.errors import GpuInUse, StateMismatch
from partage.model.gpu import ComputeMode
from partage.model.gpu_use import GpuProcess, GpuUse, ProcessKind, UseKind
from partage.model.ids import GpuUuid
from partage.model.step import SetComputeMode, reverse

if TYPE_CHECKING:  # the simulation uses this module without a driver
    from partage.edges.hardware.gpu_queries import Handle
    from partage.edges.hardware.host import Host
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

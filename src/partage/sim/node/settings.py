"""Compute mode, time slices and processes of a simulated node: what is there, and what an act makes of it.

As strict as hardware, and stricter where that is not known: in MIG mode a GPU has neither mode nor slice.
"""

from __future__ import annotations

from dataclasses import replace

from partage.edges.hardware.compute_mode import refuse_if_blocked
from partage.edges.hardware.end_process import check_uses_gpu
from partage.edges.hardware.time_slice import HINT
from partage.errors import NotFound, NotPermitted, StateMismatch, Unsupported
from partage.model.cgroup import parse_cgroup
from partage.model.gpu import ComputeMode, Gpu
from partage.model.policy import Interval
from partage.model.process import GpuMemory, GpuProcess, Processes, ProcessKind
from partage.model.step import (
    EndClient,
    EndProcess,
    GpuUse,
    SetComputeMode,
    SetTimeSlice,
    StartDaemon,
    StopDaemon,
    TimeSlice,
    UseKind,
)
from partage.sim.node.daemons import end_client, start_daemon, stop_daemon
from partage.sim.node.state import SimulatedNode, SimulatedTenant, with_gpu

_KEEPS = "this GPU keeps the length of its time slice to itself"


def set_up(
    state: SimulatedNode, gpu: Gpu, step: SetComputeMode | SetTimeSlice | StartDaemon
) -> SimulatedNode:
    """Raises HardwareError."""
    match step:
        case SetComputeMode():
            return _set_compute_mode(state, gpu, step)
        case SetTimeSlice():
            return _set_time_slice(state, gpu, step)
        case StartDaemon():
            return start_daemon(state, step)


def ended(state: SimulatedNode, step: EndProcess | StopDaemon | EndClient) -> SimulatedNode:
    """Raises HardwareError."""
    match step:
        case EndProcess():
            return _end_process(state, step)
        case StopDaemon():
            return stop_daemon(state, step)
        case EndClient():
            return end_client(state, step)


def _set_compute_mode(state: SimulatedNode, gpu: Gpu, step: SetComputeMode) -> SimulatedNode:
    """Raises GpuInUse, StateMismatch, Unsupported."""
    if gpu.compute_mode == step.mode:
        return state
    if gpu.mig_enabled:
        raise Unsupported(f"GPU {gpu.index} is in MIG mode: its MIG devices have no compute mode")
    if step.mode is ComputeMode.EXCLUSIVE_THREAD:
        raise Unsupported("exclusive-thread mode is gone since CUDA 8")
    if gpu.compute_mode != step.before:
        raise StateMismatch(f"the compute mode of GPU {gpu.index} is not the one before")
    refuse_if_blocked(processes_of(state).rows, step)
    return with_gpu(state, replace(gpu, compute_mode=step.mode))


def _set_time_slice(state: SimulatedNode, gpu: Gpu, step: SetTimeSlice) -> SimulatedNode:
    """Raises StateMismatch, Unsupported."""
    now = _slice_of(state, gpu)
    if now.interval is None:
        raise Unsupported(f"GPU {gpu.index}: {now.reason}", HINT)
    if now.interval is step.interval:
        return state
    if now.interval is not step.before:
        raise StateMismatch(f"the time slice of GPU {gpu.index} is {now.interval}, not {step.before}")
    return replace(state, slices={**state.slices, gpu.index: step.interval})


def _end_process(state: SimulatedNode, step: EndProcess) -> SimulatedNode:
    """The process is gone, from every GPU. Raises NotFound, NotPermitted, Unsupported."""
    if step.pid <= 1:
        raise NotPermitted(f"will not {step}: that is the node's")
    rows = [row for row in _running(state) if row.pid == step.pid]
    check_uses_gpu(rows, step)
    for row in rows:
        if row.start != step.start:
            raise NotFound(f"cannot {step}: another process has the pid by now")
        container = parse_cgroup(row.cgroups).container
        if not container or container != step.container:
            raise NotFound(f"cannot {step}: it is in {container[:12] or 'no container'}")
    return replace(state, uses=tuple(use for use in state.uses if use.pid != step.pid))


def time_slices_of(state: SimulatedNode) -> tuple[TimeSlice, ...]:
    """Of the GPUs that answer."""
    return tuple(
        _slice_of(state, gpu) for index, gpu in sorted(state.gpus.items()) if index not in state.lost
    )


def _slice_of(state: SimulatedNode, gpu: Gpu) -> TimeSlice:
    interval = state.slices.get(gpu.index, Interval.DEFAULT)
    if interval is None:
        return TimeSlice(gpu.uuid, None, _KEEPS)
    if gpu.mig_enabled:
        return TimeSlice(gpu.uuid, None, "in MIG mode a GPU has no time slice to set")
    return TimeSlice(gpu.uuid, interval)


def processes_of(state: SimulatedNode) -> Processes:
    """Who was put there with a pid; nobody, and a sentence, where the node is blind."""
    gpus = [gpu for index, gpu in sorted(state.gpus.items()) if index not in state.lost]
    rows = _running(state)
    used = {gpu.uuid: sum(row.used_bytes or 0 for row in rows if row.gpu == gpu.uuid) for gpu in gpus}
    memory = tuple(GpuMemory(gpu.uuid, used[gpu.uuid]) for gpu in gpus)
    if state.blind:
        return Processes((), memory, "simulated: the node's processes cannot be seen")
    return Processes(tuple(row for row in rows if row.gpu in used), memory)


def _running(state: SimulatedNode) -> list[GpuProcess]:
    order = {gpu.uuid: index for index, gpu in state.gpus.items()}
    rows = [
        _row(use, use.pid, state.tenants.get((use.gpu, use.pid)) or SimulatedTenant())
        for use in state.busy
        if use.pid is not None and use.kind is UseKind.PROCESS
    ]
    return sorted(rows, key=lambda row: (order[row.gpu], row.pid, row.gi_id or 0, row.ci_id or 0))


def _row(use: GpuUse, pid: int, tenant: SimulatedTenant) -> GpuProcess:
    kind = ProcessKind.COMPUTE
    if use.name.startswith("nvidia-cuda-mps"):
        kind = ProcessKind.MPS_SERVER
    elif tenant.mps:
        kind = ProcessKind.MPS_CLIENT
    return GpuProcess(
        gpu=use.gpu,
        pid=pid,
        used_bytes=tenant.memory_bytes,
        kind=kind,
        device=use.device,
        gi_id=use.gi_id,
        ci_id=use.ci_id,
        name=use.name[:15],
        cgroups=(f"0::{tenant.cgroup}",),
        start=tenant.start,
        uid=tenant.uid,
    )

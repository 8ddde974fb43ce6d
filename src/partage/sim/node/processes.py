"""Processes on the GPUs of a simulated node: who is listed, and how one is ended; and compute mode and time
slice, which say who may run.

These two are as strict as hardware, and stricter where that is not known: in MIG mode a GPU has neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from partage.edges.hardware.end_process import check_same_process, check_uses_gpu
from partage.edges.hardware.gpu_settings import HINT, refuse_if_blocked
from partage.errors import NotPermitted, StateMismatch, Unsupported
from partage.model.cgroup import owner_of, parse_cgroup
from partage.model.gpu import ComputeMode, Gpu
from partage.model.gpu_use import (
    GpuMemory,
    GpuProcess,
    GpuUse,
    Left,
    LeftProcess,
    Processes,
    ProcessKind,
    UseKind,
    is_mps_program,
)
from partage.model.ids import GpuUuid, PodUid
from partage.model.mps import NO_HOST_PIDS, PipeTenant, PipeTenants, ProcessRights
from partage.model.samples import ProcessActivity
from partage.model.step import EndProcess, SetComputeMode, SetTimeSlice, TimeSlice
from partage.model.strategy import Interval
from partage.sim.node.load import LoadNow, load_at
from partage.sim.node.state import SimulatedNode, SimulatedProcess, answering_gpu, with_gpu


def processes_of(state: SimulatedNode, rows: Sequence[GpuProcess] | None = None) -> Processes:
    """All uses that have a pid. No rows, and the reason, where the node's processes are hidden. rows: of
    ``all_rows``, where they are there already.
    """
    gpus = [gpu for index, gpu in sorted(state.gpus.items()) if index not in state.lost]
    rows = all_rows(state) if rows is None else rows
    used = dict.fromkeys((gpu.uuid for gpu in gpus), 0)
    for row in rows:
        if row.gpu in used:
            used[row.gpu] += row.used_bytes or 0
    memory = tuple(GpuMemory(gpu.uuid, used[gpu.uuid]) for gpu in gpus)
    if state.processes_hidden:
        return Processes((), memory, "simulated: the node's processes cannot be seen")
    return Processes(tuple(row for row in rows if row.gpu in used), memory)


def left_of(state: SimulatedNode, pods: Collection[PodUid]) -> Left:
    """The processes of these pods. They stay on the node when their pod is deleted by force."""
    if state.processes_hidden:
        return Left(unseen="simulated: the node's processes cannot be seen")
    found = {
        row.pid: LeftProcess(owner.pod, owner.container, row.pid, row.name)
        for row in all_rows(state)
        for owner in [parse_cgroup(row.cgroups)]
        if owner.pod in pods
    }
    return Left(tuple(found.values()))


def tenants_of(state: SimulatedNode) -> PipeTenants:
    """The containers and jobs of clients. A simulated process that is not root's cannot become root."""
    if state.processes_hidden:
        return PipeTenants(unseen=NO_HOST_PIDS)
    found: dict[PipeTenant, dict[ProcessRights, None]] = {}
    for row in all_rows(state):
        process = state.processes.get((row.gpu, row.pid))
        owner = parse_cgroup(row.cgroups)
        device = row.device or row.gpu
        if process is not None and process.mps and owner and device in state.daemons:
            uid = process.uid
            rights = ProcessRights(row.pid, uid, uid, uid, no_new_privs=uid != 0, permitted=0)
            job = owner.job.job if owner.job else ""
            tenant = PipeTenant(device, owner.pod, owner.container, job)
            whole = not state.daemons[device].spec.limits.apart
            found.setdefault(replace(tenant, whole=whole), {})[rights] = None
    return PipeTenants(
        tuple(replace(pipe_tenant, rights=tuple(rights)) for pipe_tenant, rights in found.items())
    )


def end_process(state: SimulatedNode, step: EndProcess) -> SimulatedNode:
    """The node without the process, on all GPUs. Raises NotFound, NotPermitted, Unsupported."""
    if step.pid <= 1:
        raise NotPermitted(f"will not {step}: that is the node's")
    rows = [row for row in all_rows(state) if row.pid == step.pid]
    check_uses_gpu(rows, step)
    for row in rows:
        check_same_process(step, row.start, parse_cgroup(row.cgroups).container)
    return without_empty_cgroups(replace(state, uses=tuple(use for use in state.uses if use.pid != step.pid)))


def without_empty_cgroups(state: SimulatedNode) -> SimulatedNode:
    """A container or job ends with its last process, and its cgroups with it, and with these its limits."""
    used = {row.cgroups[0].removeprefix("0::") for row in all_rows(state)}
    tree = state.cgroups
    for path in sorted(tree.cgroups, key=len, reverse=True):
        if owner_of(path).limited and not any(f"{place}/".startswith(f"{path}/") for place in used):
            tree = tree.removed(path)
    return replace(state, cgroups=tree)


def activities_of(state: SimulatedNode, rows: Iterable[GpuProcess]) -> list[ProcessActivity]:
    """What those of these processes that have a load do now. A process that works on several
    MIG devices
    of a GPU counts once.
    """
    found: dict[tuple[GpuUuid, int], ProcessActivity] = {}
    for row in rows:
        process = state.processes.get((row.gpu, row.pid))
        if process is not None and process.load is not None:
            now = _now(state, process)
            found[row.gpu, row.pid] = ProcessActivity(row.gpu, row.pid, now.sm, now.memory)
    return list(found.values())


def all_rows(state: SimulatedNode) -> list[GpuProcess]:
    """All processes with contexts, also hidden ones and those on lost GPUs."""
    order = {gpu.uuid: index for index, gpu in state.gpus.items()}
    rows = [
        _row(state, use, use.pid, state.processes.get((use.gpu, use.pid)) or SimulatedProcess())
        for use in state.all_uses
        if use.pid is not None and use.kind is UseKind.PROCESS
    ]
    ordered = sorted(rows, key=lambda row: (order[row.gpu], row.pid, row.gi_id or 0, row.ci_id or 0))
    return _within_limits(state, ordered) if state.cgroups.limited else ordered


def _within_limits(state: SimulatedNode, rows: Iterable[GpuProcess]) -> list[GpuProcess]:
    """The rows as the driver lets them be: what a process wants beyond the limit of its cgroup it does not
    get. Who comes first has it.
    """
    left: dict[tuple[str, GpuUuid], int] = {}
    found = []
    for row in rows:
        path = row.cgroups[0].removeprefix("0::")
        most = state.cgroups.most_bytes(path, row.gpu)
        if most is None or row.used_bytes is None:
            found.append(row)
            continue
        rest = left.get((path, row.gpu), most)
        used_bytes = min(row.used_bytes, rest)
        left[path, row.gpu] = rest - used_bytes
        found.append(replace(row, used_bytes=used_bytes))
    return found


def _now(state: SimulatedNode, process: SimulatedProcess) -> LoadNow:
    if process.load is None:
        return LoadNow(process.memory_bytes, 0.0, 0.0)
    return load_at(process.load, process.memory_bytes, max(0.0, state.now_s - process.since_s))


def _row(state: SimulatedNode, use: GpuUse, pid: int, process: SimulatedProcess) -> GpuProcess:
    kind = ProcessKind.COMPUTE
    if is_mps_program(use.name):
        kind = ProcessKind.MPS_SERVER
    elif process.mps:
        kind = ProcessKind.MPS_CLIENT
    return GpuProcess(
        gpu=use.gpu,
        pid=pid,
        used_bytes=_now(state, process).memory_bytes,
        kind=kind,
        device=use.device,
        gi_id=use.gi_id,
        ci_id=use.ci_id,
        name=use.name[:15],
        cgroups=(f"0::{process.cgroup}",),
        start=process.start,
        uid=process.uid,
    )


def set_compute_mode(state: SimulatedNode, step: SetComputeMode) -> SimulatedNode:
    """Raises GpuInUse, GpuLost, StateMismatch, NotFound, Unsupported."""
    gpu = answering_gpu(state, step.gpu)
    if gpu.compute_mode == step.mode:
        return state
    if gpu.mig_enabled:
        raise Unsupported(f"GPU {gpu.index} is in MIG mode: its MIG devices have no compute mode")
    if step.mode is ComputeMode.EXCLUSIVE_THREAD:
        raise Unsupported("exclusive-thread mode is gone since CUDA 8")
    if gpu.compute_mode != step.before:
        raise StateMismatch(
            f"the compute mode of GPU {gpu.index} is {gpu.compute_mode.word}, not {step.before.word}"
        )
    refuse_if_blocked(processes_of(state).rows, step)
    return with_gpu(state, replace(gpu, compute_mode=step.mode))


def set_time_slice(state: SimulatedNode, step: SetTimeSlice) -> SimulatedNode:
    """Raises GpuLost, StateMismatch, NotFound, Unsupported."""
    gpu = answering_gpu(state, step.gpu)
    now = _time_slice_of(state, gpu)
    if now.interval is None:
        raise Unsupported(f"GPU {gpu.index}: {now.reason}", HINT)
    if now.interval is step.interval:
        return state
    if now.interval is not step.before:
        raise StateMismatch(f"the time slice of GPU {gpu.index} is {now.interval}, not {step.before}")
    return replace(state, time_slices={**state.time_slices, gpu.index: step.interval})


def time_slices_of(state: SimulatedNode) -> tuple[TimeSlice, ...]:
    """The time slices of the GPUs that answer, by index."""
    return tuple(
        _time_slice_of(state, gpu) for index, gpu in sorted(state.gpus.items()) if index not in state.lost
    )


def _time_slice_of(state: SimulatedNode, gpu: Gpu) -> TimeSlice:
    interval = state.time_slices.get(gpu.index, Interval.DEFAULT)
    if interval is None:
        return TimeSlice(gpu.uuid, None, "the driver of this GPU keeps the length of its time slice")
    if gpu.mig_enabled:
        return TimeSlice(gpu.uuid, None, "in MIG mode a GPU has no time slice to set")
    return TimeSlice(gpu.uuid, interval)

"""Processes on the GPUs of a simulated node: who is listed, and how one is ended."""

from __future__ import annotations

from msgspec.structs import replace

from partage.edges.hardware.end_process import check_same_process, check_uses_gpu
from partage.errors import NotPermitted
from partage.model.cgroup import parse_cgroup
from partage.model.process import GpuMemory, GpuProcess, Processes, ProcessKind, is_mps_program
from partage.model.step import EndProcess, GpuUse, UseKind
from partage.sim.node.state import SimulatedNode, SimulatedProcess


def processes_of(state: SimulatedNode) -> Processes:
    """All uses that have a pid. No rows, and the reason, where the node's processes are hidden."""
    gpus = [gpu for index, gpu in sorted(state.gpus.items()) if index not in state.lost]
    rows = _rows(state)
    used = {gpu.uuid: sum(row.used_bytes or 0 for row in rows if row.gpu == gpu.uuid) for gpu in gpus}
    memory = tuple(GpuMemory(gpu.uuid, used[gpu.uuid]) for gpu in gpus)
    if state.processes_hidden:
        return Processes((), memory, "simulated: the node's processes cannot be seen")
    return Processes(tuple(row for row in rows if row.gpu in used), memory)


def end_process(state: SimulatedNode, step: EndProcess) -> SimulatedNode:
    """The node without the process, on all GPUs. Raises NotFound, NotPermitted, Unsupported."""
    if step.pid <= 1:
        raise NotPermitted(f"will not {step}: that is the node's")
    rows = [row for row in _rows(state) if row.pid == step.pid]
    check_uses_gpu(rows, step)
    for row in rows:
        check_same_process(step, row.start, parse_cgroup(row.cgroups).container)
    return replace(state, uses=tuple(use for use in state.uses if use.pid != step.pid))


def _rows(state: SimulatedNode) -> list[GpuProcess]:
    order = {gpu.uuid: index for index, gpu in state.gpus.items()}
    rows = [
        _row(use, use.pid, state.processes.get((use.gpu, use.pid)) or SimulatedProcess())
        for use in state.all_uses
        if use.pid is not None and use.kind is UseKind.PROCESS
    ]
    return sorted(rows, key=lambda row: (order[row.gpu], row.pid, row.gi_id or 0, row.ci_id or 0))


def _row(use: GpuUse, pid: int, process: SimulatedProcess) -> GpuProcess:
    kind = ProcessKind.COMPUTE
    if is_mps_program(use.name):
        kind = ProcessKind.MPS_SERVER
    elif process.mps:
        kind = ProcessKind.MPS_CLIENT
    return GpuProcess(
        gpu=use.gpu,
        pid=pid,
        used_bytes=process.memory_bytes,
        kind=kind,
        device=use.device,
        gi_id=use.gi_id,
        ci_id=use.ci_id,
        name=use.name[:15],
        cgroups=(f"0::{process.cgroup}",),
        start=process.start,
        uid=process.uid,
    )

"""The processes on each GPU with the memory they use, and whether all of them are visible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from partage.edges.hardware.host import Host
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.hardware.running_processes import (
    GpuPart,
    NvmlDevices,
    RunningProcess,
    skip_failures,
)
from partage.edges.host import procfs
from partage.edges.host.procfs import ProcessInfo, own_pids, read_process
from partage.errors import Unsupported
from partage.model.cgroup import parse_cgroup
from partage.model.gpu_use import GpuMemory, GpuProcess, Processes, ProcessKind, is_mps_program
from partage.model.ids import DeviceUuid, GpuUuid
from partage.units import MIB

ReadProcesses = Callable[[set[int]], Mapping[int, ProcessInfo | None]]

_RANK = {kind: rank for rank, kind in enumerate(ProcessKind)} | {ProcessKind.MPS_CLIENT: -1}


def processes(nvml: Nvml, host: Host) -> Processes:
    """All processes that the driver lists, each with its data in /proc. Raises DriverUnavailable."""
    devices = NvmlDevices(nvml)
    seen: dict[int, ProcessInfo | None] = {}

    def read(pids: set[int]) -> Mapping[int, ProcessInfo | None]:
        seen.update((pid, read_process(host.proc, pid)) for pid in pids)
        return seen

    rows = listed(devices, host, read)
    memory = tuple(_memory(nvml, devices))
    return Processes(rows, memory, why_hidden(host.proc, seen, rows, memory))


def users_of(found: Processes, device: DeviceUuid, without: Collection[int]) -> tuple[str, ...]:
    """The processes that compute on a GPU or MIG device, except those with these pids: a name for each.

    A name or a kind does not make a server of a process: a tenant can choose its name. Raises Unsupported
    where processes may be hidden.
    """
    if found.hidden:
        raise Unsupported(f"nobody can see whether {device} has clients of MPS: {found.hidden}")
    return tuple(
        f"process {row.name or 'unknown'} (pid {row.pid})"
        for row in found.rows
        if device in (row.device, row.gpu) and row.pid not in without and row.kind is not ProcessKind.GRAPHICS
    )


def listed(devices: NvmlDevices, host: Host, read: ReadProcesses) -> tuple[GpuProcess, ...]:
    """The processes on these devices. read: what /proc says of processes with these pids."""
    own = own_pids(host.proc)
    found = _merged(devices.processes())
    running = [
        process
        for gpu in devices.handles
        for process in found
        if process.part.gpu == gpu and process.pid not in own
    ]
    seen = read({process.pid for process in running})
    return tuple(_row(process, devices, seen[process.pid]) for process in running)


def _merged(running: Iterable[RunningProcess]) -> list[RunningProcess]:
    """One row for each process and part of a GPU. Lists agree on the memory, or one of them has no figure."""
    found: dict[tuple[GpuPart, int], RunningProcess] = {}
    for process in running:
        other = found.get((process.part, process.pid), process)
        kind = min(process.kind, other.kind, key=_RANK.__getitem__)
        used = max((n for n in (process.used_bytes, other.used_bytes) if n is not None), default=None)
        found[process.part, process.pid] = RunningProcess(process.pid, process.part, kind, used)
    # The list of a GPU in MIG mode may contain a process without its instance; the MIG device's list has it.
    parts: dict[int, set[GpuPart]] = {}
    for part, pid in found:
        parts.setdefault(pid, set()).add(part)
    narrow = [
        running_process
        for running_process in found.values()
        if not any(other.within(running_process.part) for other in parts[running_process.pid])
    ]
    return sorted(
        narrow,
        key=lambda running_process: (
            running_process.pid,
            running_process.part.gi_id or 0,
            running_process.part.ci_id or 0,
        ),
    )


def _row(process: RunningProcess, devices: NvmlDevices, seen: ProcessInfo | None) -> GpuProcess:
    part, name = process.part, seen.name if seen else ""
    kind = ProcessKind.MPS_SERVER if is_mps_program(name) else process.kind
    return GpuProcess(
        gpu=part.gpu,
        pid=process.pid,
        used_bytes=process.used_bytes,
        kind=kind,
        device=devices.mig_device(part),
        gi_id=part.gi_id,
        ci_id=part.ci_id,
        name=name,
        cgroups=seen.cgroups if seen else (),
        start=seen.start if seen else None,
        uid=seen.uid if seen else None,
    )


def _memory(nvml: Nvml, devices: NvmlDevices) -> Iterator[GpuMemory]:
    for gpu, handle in devices.handles.items():
        used = None
        with skip_failures():
            used = nvml.used_bytes(handle)
        yield GpuMemory(gpu, used)


# --- whether we see all of them ------------------------------------------------------------------


def why_hidden(
    proc: Path,
    seen: Mapping[int, ProcessInfo | None],
    rows: Iterable[GpuProcess],
    memory: Iterable[GpuMemory],
) -> str:
    """Why processes may be missing; empty if none can be missing."""
    missing = (pid for pid, process_info in seen.items() if process_info is None)
    hidden = [pid for pid in missing if procfs.start_of(proc, pid) is None and procfs.exists(pid)]
    if hidden:
        return f"/proc hides processes (hidepid), for example process {min(hidden)}"
    if procfs.sees_all_pids(proc) or sees_other_pods(proc, seen):
        return ""
    accounted = Counter[GpuUuid]()
    for row in rows:
        accounted[row.gpu] += row.used_bytes or 0
    rest = max(
        (gpu_memory.used_bytes - accounted[gpu_memory.gpu] for gpu_memory in memory if gpu_memory.used_bytes),
        default=0,
    )
    unseen = f"; {rest // MIB} MiB of a GPU belong to no visible process" if rest >= MIB else ""
    return f"without the node's process ids (hostPID) the driver hides other processes{unseen}"


def sees_other_pods(proc: Path, seen: Mapping[int, ProcessInfo | None]) -> bool:
    """Whether processes of another pod are visible: then this pid namespace is the node's, though not the
    initial one.

    That is so if the node is itself a container (kind). Containers of the own pod prove nothing, because a
    pod can share one pid namespace among its containers.
    """
    own = parse_cgroup(procfs.self_cgroups(proc))
    listed_first = (parse_cgroup(process_info.cgroups) for process_info in seen.values() if process_info)
    others = (parse_cgroup(procfs.cgroups_of(proc, pid)) for pid in procfs.pids(proc))
    return any(owner.pod and owner.pod != own.pod for found in (listed_first, others) for owner in found)

"""Which processes use GPUs: from the driver's lists of processes, and from open device files in /proc.

The driver lists processes with a context. DCGM, nvidia-persistenced and similar programs have none but keep
the GPU open, which only their open device files show. In a container without the host's pids only its own
processes are visible.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from partage.edges.hardware.host import Host
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.hardware.running_processes import GpuPart, NvmlDevices
from partage.edges.host.procfs import name_of, own_pids, pids
from partage.model.gpu_use import PERSISTENCE_DAEMON, GpuUse, UseKind

_NODE = re.compile(r"(?:.*/)?nvidia(\d+)", re.ASCII)
_CAPABILITY = re.compile(r"(?:.*/)?nvidia-cap(\d+)", re.ASCII)
_MONITORS = (
    PERSISTENCE_DAEMON, "nv-hostengine", "dcgm", "nvsm", "nv-fabricmanag", "nvidia-fabricma", "nvidia-smi",
    "nvidia-device-p", "gpu-feature-dis", "nvidia_gpu_expo", "nvidia-gpu-expo",
)  # fmt: skip
"""Beginnings of the names of programs that only monitor. The kernel keeps 15 characters of a command's
name.
"""


def uses(nvml: Nvml, host: Host) -> tuple[GpuUse, ...]:
    """All uses, without this process; what may not be read is left out. Raises DriverUnavailable."""
    devices = NvmlDevices(nvml)
    held: dict[int, set[GpuPart]] = {}
    for pid, part in (
        *((process.pid, process.part) for process in devices.processes()),
        *_opened(host, devices),
    ):
        held.setdefault(pid, set()).add(part)
    for own in own_pids(host.proc):
        held.pop(own, None)
    found: list[GpuUse] = []
    for pid, parts in sorted(held.items()):
        name = name_of(host.proc, pid)
        kind = UseKind.MONITOR if name.startswith(_MONITORS) else UseKind.PROCESS
        found += [
            GpuUse(part.gpu, kind, name or "unknown", pid, devices.mig_device(part), part.gi_id, part.ci_id)
            for part in sorted(_narrowest(parts), key=_order)
        ]
    return tuple(found)


def _narrowest(parts: set[GpuPart]) -> Iterator[GpuPart]:
    """A process on a MIG device has its GPU's file open too, which is no use of the whole GPU."""
    return (part for part in parts if not any(other.within(part) for other in parts))


def _order(part: GpuPart) -> tuple[str, int, int]:
    return part.gpu, -1 if part.gi_id is None else part.gi_id, -1 if part.ci_id is None else part.ci_id


def _opened(host: Host, devices: NvmlDevices) -> Iterator[tuple[int, GpuPart]]:
    """The uses that open device files show."""
    capabilities = {
        number: GpuPart(devices.minors[minor], gi_id, ci_id)
        for (minor, gi_id, ci_id), number in host.capability_minors().items()
        if minor in devices.minors
    }
    for pid in pids(host.proc):
        for target in _files(host.proc / str(pid) / "fd"):
            if match := _NODE.fullmatch(target):
                uuid = devices.minors.get(int(match[1]))
                if uuid is not None:
                    yield pid, GpuPart(uuid)
            elif match := _CAPABILITY.fullmatch(target):
                part = capabilities.get(int(match[1]))
                if part is not None:
                    yield pid, part


def _files(directory: Path) -> Iterator[str]:
    """Targets of a process's open files; none if it has ended or may not be read."""
    try:
        files = list(directory.iterdir())
    except OSError:
        return
    for file in files:
        with contextlib.suppress(OSError):
            yield str(file.readlink())

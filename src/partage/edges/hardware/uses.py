"""Who has GPUs open: the driver's lists of processes, and handles found below /proc.

The driver lists who has a context. DCGM, persistenced and the like have none and still hold the GPU: only
their open device files show them. A container that does not share the host's processes sees its own alone.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partage.edges.hardware.host import Host
from partage.edges.hardware.readings import NO_INSTANCE, Handle, Nvml
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout
from partage.model.step import Use, UseKind

_NODE = re.compile(r"(?:.*/)?nvidia(\d+)", re.ASCII)
_CAPABILITY = re.compile(r"(?:.*/)?nvidia-cap(\d+)", re.ASCII)
_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
_VERSIONS = ("_v3", "_v2")
"""Newest first; before R510 there is no third. Asked by name, pynvml's unversioned call takes an old library
for a fault."""

_MONITORS = (
    "nvidia-persiste", "nv-hostengine", "dcgm", "nvsm", "nv-fabricmanag", "nvidia-fabricma", "nvidia-smi",
    "nvidia-device-p", "gpu-feature-dis", "nvidia_gpu_expo", "nvidia-gpu-expo",
)  # fmt: skip
"""How the names of those begin that only look. The kernel keeps 15 characters of a command's name."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a GPU somebody holds; without gi_id all of it."""

    gpu: str
    gi_id: int | None = None
    ci_id: int | None = None

    def within(self, other: _Part) -> bool:
        """It is a part of ``other``, and not the same."""
        return self != other and (
            (self.gpu, self.gi_id) == (other.gpu, other.gi_id) and other.ci_id is None
            if other.gi_id is not None
            else self.gpu == other.gpu
        )


@dataclass(frozen=True, slots=True)
class _Node:
    """handles: of the GPU and its MIG devices. devices: UUIDs of MIG devices."""

    minors: Mapping[int, str]
    handles: Mapping[_Part, Handle]
    devices: Mapping[_Part, str]


def uses(nvml: Nvml, host: Host) -> tuple[Use, ...]:
    """All uses, this process left out; what may not be read is not there. Raises DriverUnavailable."""
    node = _read_node(nvml)
    held: dict[int, set[_Part]] = {}
    for pid, part in (*_listed(nvml, node), *_opened(host, node)):
        held.setdefault(pid, set()).add(part)
    for own in (os.getpid(), _self(host.proc)):
        held.pop(own, None)
    found: list[Use] = []
    for pid, parts in sorted(held.items()):
        name = _name(host.proc, pid)
        kind = UseKind.MONITOR if name.startswith(_MONITORS) else UseKind.PROCESS
        found += [
            Use(part.gpu, kind, name or "unknown", pid, node.devices.get(part), part.gi_id, part.ci_id)
            for part in sorted(_narrowest(parts), key=_order)
        ]
    return tuple(found)


def _narrowest(parts: set[_Part]) -> Iterator[_Part]:
    """Who works on a MIG device has its GPU open too: that is no use of the whole GPU."""
    return (part for part in parts if not any(other.within(part) for other in parts))


def _order(part: _Part) -> tuple[str, int, int]:
    return part.gpu, -1 if part.gi_id is None else part.gi_id, -1 if part.ci_id is None else part.ci_id


def _read_node(nvml: Nvml) -> _Node:
    minors: dict[int, str] = {}
    handles: dict[_Part, Handle] = {}
    devices: dict[_Part, str] = {}
    for uuid, handle in nvml.handles().items():
        with _tolerant():
            handles[_Part(uuid)] = handle
            minor = nvml.minor(handle)
            if minor is not None:
                minors[minor] = uuid
            mode = nvml.mig_mode(handle)
            for mig in nvml.mig_handles(handle).values() if mode and mode.current else ():
                attributes = nvml.mig_attributes(mig)
                part = _Part(uuid, attributes.gi_id, attributes.ci_id)
                handles[part], devices[part] = mig, attributes.uuid
    return _Node(minors, handles, devices)


def _listed(nvml: Nvml, node: _Node) -> Iterator[tuple[int, _Part]]:
    """What the driver says. Of a GPU in MIG mode it names the instances of a process."""
    for part, handle in node.handles.items():
        for call in _LISTS:
            for process in _processes(nvml, call, handle):
                yield int(process.pid), _named(part, process)


def _processes(nvml: Nvml, call: str, handle: Handle) -> Iterable[Any]:
    with _tolerant():
        for version in _VERSIONS:
            processes: list[object] | None = nvml.optional(call + version, handle)
            if processes is not None:
                return processes
    return ()


def _named(part: _Part, process: object) -> _Part:
    gi_id, ci_id = (getattr(process, name, None) for name in ("gpuInstanceId", "computeInstanceId"))
    if part.gi_id is not None or gi_id in (None, NO_INSTANCE):
        return part
    return _Part(part.gpu, gi_id, None if ci_id == NO_INSTANCE else ci_id)


def _opened(host: Host, node: _Node) -> Iterator[tuple[int, _Part]]:
    """What open device files say."""
    capabilities = {
        number: _Part(node.minors[minor], gi_id, ci_id)
        for (minor, gi_id, ci_id), number in host.capability_minors().items()
        if minor in node.minors
    }
    for pid in _pids(host.proc):
        for target in _files(host.proc / str(pid) / "fd"):
            if match := _NODE.fullmatch(target):
                uuid = node.minors.get(int(match[1]))
                if uuid is not None:
                    yield pid, _Part(uuid)
            elif match := _CAPABILITY.fullmatch(target):
                part = capabilities.get(int(match[1]))
                if part is not None:
                    yield pid, part


def _pids(proc: Path) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    except OSError:
        return []


def _files(directory: Path) -> Iterator[str]:
    """Targets of a process's open files; none of one that has gone, or that is not ours to look at."""
    try:
        files = list(directory.iterdir())
    except OSError:
        return
    for file in files:
        with contextlib.suppress(OSError):
            yield str(file.readlink())


def _name(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _self(proc: Path) -> int:
    """Our own pid as this /proc numbers it."""
    try:
        return int(str((proc / "self").readlink()))
    except (OSError, ValueError):
        return os.getpid()


@contextlib.contextmanager
def _tolerant() -> Iterator[None]:
    """A GPU that fails, or a list that is not ours to read, costs its own answer and no other."""
    try:
        yield
    except (DriverUnavailable, HardwareTimeout):
        raise
    except HardwareError:
        pass

"""Which processes use GPUs: from the driver's three lists of every GPU, and from open device files in /proc.

In MIG mode the list of a GPU has the processes of its MIG devices too, with their instances, "only if the
caller has appropriate privileges" (nvml.h, nvmlDeviceGetComputeRunningProcesses). Until that was seen, and
whenever a process has no instance, every MIG device is asked for its own list.

MPS clients have a list of their own and are in no other; an MPS server is in the compute list. A process may
be in several lists, with the same memory in each.

The driver lists processes with a context. DCGM, nvidia-persistenced and similar programs have none but keep
the GPU open, which only their open device files show. In a container without the host's pids only its own
processes are visible.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from partage.edges.hardware.gpu_queries import Handle, KnownMig
from partage.edges.hardware.host import Host
from partage.edges.hardware.mig_devices import known_migs, mig_uuid
from partage.edges.hardware.nvml_queries import NO_INSTANCE, Nvml
from partage.edges.host.procfs import name_of, own_pids, pids
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout
from partage.model.gpu_use import PERSISTENCE_DAEMON, GpuUse, ProcessKind, UseKind
from partage.model.ids import GpuUuid, MigUuid
from partage.values import Frozen

_LISTS = {
    ProcessKind.MPS_CLIENT: "nvmlDeviceGetMPSComputeRunningProcesses",
    ProcessKind.COMPUTE: "nvmlDeviceGetComputeRunningProcesses",
    ProcessKind.GRAPHICS: "nvmlDeviceGetGraphicsRunningProcesses",
}
"""The kind of the processes in each list. If a process has several kinds, the first one counts."""

_VERSIONS = ("_v3", "_v2")
"""Newest first; before R510 there is no v3. The version is part of the name, because pynvml's call without a
version treats an old library as an error.
"""

_WIDE_ROWS = ((535, 43), (535, 98))
"""From the first of these drivers until before the second one, v3 writes rows of 32 bytes where all others
write 24: of three processes, two have made-up pids. v2 is right there. Source: XuehaiPan/nvitop, pull request
79 and issue 88, which quote NVIDIA's nvidia-settings.
"""


class GpuPart(Frozen):
    """A GPU, or one of its GPU or compute instances; without gi_id the whole GPU."""

    gpu: GpuUuid
    gi_id: int | None = None
    ci_id: int | None = None

    def within(self, other: GpuPart) -> bool:
        """Whether it is a part of ``other``, and not the same."""
        return self != other and (
            (self.gpu, self.gi_id) == (other.gpu, other.gi_id) and other.ci_id is None
            if other.gi_id is not None
            else self.gpu == other.gpu
        )


class RunningProcess(Frozen):
    """One process in one list."""

    pid: int
    part: GpuPart
    kind: ProcessKind
    used_bytes: int | None


class NvmlDevices:
    """The GPUs that answer now, and their MIG devices as far as they matter. For one use.

    minors: minor number to UUID of GPUs. handles: of GPUs.
    """

    def __init__(self, nvml: Nvml) -> None:
        """Raises DriverUnavailable."""
        self.minors: dict[int, GpuUuid] = {}
        self.handles: dict[GpuUuid, Handle] = {}
        self._nvml = nvml
        self._in_mig_mode: set[GpuUuid] = set()
        self._found: dict[GpuPart, MigUuid | None] = {}
        for uuid, handle in nvml.handles().items():
            with skip_failures():
                self.handles[uuid] = handle
                mode = nvml.mig_mode(handle)
                if mode and mode.current:
                    self._in_mig_mode.add(uuid)
                known = nvml.memory.gpus.get(uuid)
                minor = known.minor if known and known.mig_mode == mode else nvml.minor(handle)
                if minor is not None:
                    self.minors[minor] = uuid

    def in_mig_mode(self, gpu: GpuUuid) -> bool:
        """Whether the GPU is in MIG mode."""
        return gpu in self._in_mig_mode

    def mig_device(self, part: GpuPart) -> MigUuid | None:
        """The UUID of the MIG device that is this part of a GPU; None if there is none."""
        if part.gi_id is None or part.ci_id is None or part.gpu not in self._in_mig_mode:
            return None
        if part not in self._found:
            self._found[part] = None
            with skip_failures():
                self._found[part] = mig_uuid(self._nvml, self.handles[part.gpu], part.gi_id, part.ci_id)
        return self._found[part]

    def processes(self) -> Iterator[RunningProcess]:
        """The processes that the driver lists. On a GPU in MIG mode it reports the instances of a process."""
        versions = _versions(self._nvml.driver().version)
        for uuid, handle in self.handles.items():
            migs: tuple[KnownMig, ...] | None = None
            for kind in _LISTS:
                listed = _listed(self._nvml, kind, versions, GpuPart(uuid), handle)
                yield from listed or ()
                if uuid in self._in_mig_mode and self._has_to_ask_migs(listed):
                    if migs is None:
                        migs = self._migs(handle)
                    processes = list(self._on_migs(kind, versions, uuid, migs))
                    self._learn(listed, processes)
                    yield from processes

    def _has_to_ask_migs(self, listed: Sequence[RunningProcess] | None) -> bool:
        """Whether the list of a GPU in MIG mode may lack processes, or their instances."""
        return not self._nvml.memory.names_instances or listed is None or not _named_all(listed)

    def _learn(self, listed: Sequence[RunningProcess] | None, processes: Sequence[RunningProcess]) -> None:
        """Whether the list of the GPU has all that the lists of its MIG devices have. Without processes on
        MIG devices nothing can be learned.
        """
        memory = self._nvml.memory
        if listed is None or not _named_all(listed):
            memory.names_instances = False
        elif processes and {(process.pid, process.part) for process in processes} <= {
            (process.pid, process.part) for process in listed
        }:
            memory.names_instances = True

    def _migs(self, handle: Handle) -> tuple[KnownMig, ...]:
        with skip_failures():
            return known_migs(self._nvml, handle)
        return ()

    def _on_migs(
        self, kind: ProcessKind, versions: Iterable[str], gpu: GpuUuid, migs: Iterable[KnownMig]
    ) -> Iterator[RunningProcess]:
        for mig in migs:
            part = GpuPart(gpu, mig.attributes.gi_id, mig.attributes.ci_id)
            self._found[part] = mig.attributes.uuid
            yield from _listed(self._nvml, kind, versions, part, mig.handle) or ()


def _named_all(listed: Iterable[RunningProcess]) -> bool:
    return all(process.part.ci_id is not None for process in listed)


def _listed(
    nvml: Nvml, kind: ProcessKind, versions: Iterable[str], part: GpuPart, handle: Handle
) -> list[RunningProcess] | None:
    """The processes of one list; None if it cannot be read."""
    with skip_failures():
        return [
            RunningProcess(
                int(process.pid),
                _named(part, process),
                kind,
                None if process.usedGpuMemory is None else int(process.usedGpuMemory),
            )
            for process in _processes(nvml, _LISTS[kind], versions, handle)
        ]
    return None


def _versions(driver: str) -> tuple[str, ...]:
    """The versions of the list calls that can be read on this driver."""
    numbers = tuple(int(part) for part in driver.split(".")[:2] if part.isdigit())
    return ("_v2",) if _WIDE_ROWS[0] <= numbers < _WIDE_ROWS[1] else _VERSIONS


def _processes(nvml: Nvml, call: str, versions: Iterable[str], handle: Handle) -> Iterable[Any]:
    for version in versions:
        processes: list[Any] | None = nvml.optional(call + version, handle)
        if processes is not None:
            return processes
    return ()


def _named(part: GpuPart, process: object) -> GpuPart:
    gi_id, ci_id = (getattr(process, name, None) for name in ("gpuInstanceId", "computeInstanceId"))
    if part.gi_id is not None or gi_id in (None, NO_INSTANCE):
        return part
    return GpuPart(part.gpu, gi_id, None if ci_id == NO_INSTANCE else ci_id)


@contextlib.contextmanager
def skip_failures() -> Iterator[None]:
    """Ignore an error of one GPU, or of a list that may not be read: only its own answer is missing."""
    try:
        yield
    except (DriverUnavailable, HardwareTimeout):
        raise
    except HardwareError:
        pass


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

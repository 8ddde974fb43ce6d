"""The processes with contexts on GPUs, from the driver's three lists of every GPU and every MIG device.

MPS clients have a list of their own and are in no other; an MPS server is in the compute list. A process
may be in several lists, with the same memory in each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from partage.edges.hardware.nvml_queries import NO_INSTANCE, Handle, Nvml
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout
from partage.model.ids import GpuUuid, MigUuid
from partage.model.process import ProcessKind
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


class NvmlDevices(Frozen):
    """minors: minor number to UUID of GPUs. handles: of GPUs and MIG devices. migs: UUIDs of MIG devices."""

    minors: Mapping[int, GpuUuid]
    handles: Mapping[GpuPart, Handle]
    migs: Mapping[GpuPart, MigUuid]


class RunningProcess(Frozen):
    """One process in one list."""

    pid: int
    part: GpuPart
    kind: ProcessKind
    used_bytes: int | None


def read_devices(nvml: Nvml) -> NvmlDevices:
    """All devices that answer now."""
    minors: dict[int, GpuUuid] = {}
    handles: dict[GpuPart, Handle] = {}
    migs: dict[GpuPart, MigUuid] = {}
    for uuid, handle in nvml.handles().items():
        with skip_failures():
            handles[GpuPart(uuid)] = handle
            minor = nvml.minor(handle)
            if minor is not None:
                minors[minor] = uuid
            mode = nvml.mig_mode(handle)
            for mig in nvml.mig_handles(handle).values() if mode and mode.current else ():
                attributes = nvml.mig_attributes(mig)
                part = GpuPart(uuid, attributes.gi_id, attributes.ci_id)
                handles[part], migs[part] = mig, attributes.uuid
    return NvmlDevices(minors, handles, migs)


def listed_processes(nvml: Nvml, handles: Mapping[GpuPart, Handle]) -> Iterator[RunningProcess]:
    """The processes that the driver lists. On a GPU in MIG mode it reports the instances of a process."""
    versions = _versions(nvml.driver().version)
    for part, handle in handles.items():
        for kind, call in _LISTS.items():
            for one in _processes(nvml, call, versions, handle):
                used = one.usedGpuMemory
                yield RunningProcess(
                    int(one.pid), _named(part, one), kind, None if used is None else int(used)
                )


def _versions(driver: str) -> tuple[str, ...]:
    """The versions of the list calls that can be read on this driver."""
    numbers = tuple(int(part) for part in driver.split(".")[:2] if part.isdigit())
    return ("_v2",) if _WIDE_ROWS[0] <= numbers < _WIDE_ROWS[1] else _VERSIONS


def _processes(nvml: Nvml, call: str, versions: Iterable[str], handle: Handle) -> Iterable[Any]:
    with skip_failures():
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

"""What uses a GPU or a part of it: a pod, a monitor, a process, and how much memory it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum

from partage.model.gpu import MigDevice
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, MigUuid, PodUid
from partage.values import Frozen

PERSISTENCE_DAEMON = "nvidia-persiste"
"""nvidia-persistenced, which implements persistence mode. The kernel keeps 15 characters of a name."""


class UseKind(StrEnum):
    """What uses a GPU. monitor: DCGM, nvidia-persistenced, nvsm: no workload, but it can block a reset."""

    POD = "pod"
    PROCESS = "process"
    MONITOR = "monitor"


class GpuUse(Frozen):
    """One pod or process that uses a GPU or a part of it.

    gpu: UUID of the GPU. name: ``namespace/pod``, or the name of a command. pid: None if not known.
    device: UUID of a MIG device. gi_id, ci_id: its GPU and compute instance; gi_id without ci_id means the
    whole GPU instance. All three None: the whole GPU.
    """

    gpu: GpuUuid
    kind: UseKind
    name: str
    pid: int | None = None
    device: MigUuid | None = None
    gi_id: int | None = None
    ci_id: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it uses the whole GPU."""
        return self.device is None and self.gi_id is None

    @property
    def gives_way(self) -> bool:
        """It keeps the GPU open only while persistence mode is on, which a reset turns off."""
        return self.kind is UseKind.MONITOR and self.name.startswith(PERSISTENCE_DAEMON)

    def is_of(self, gpu: GpuUuid, device: MigDevice) -> bool:
        """Whether it uses this MIG device of a GPU (UUID), or the GPU instance that the device is in."""
        if self.gpu != gpu or self.whole:
            return False
        return self.device == device.uuid or (
            self.gi_id == device.gi_id and self.ci_id in (None, device.ci_id)
        )

    def __str__(self) -> str:
        pid = "" if self.pid is None else f" (pid {self.pid})"
        return f"{self.kind} {self.name}{pid}"


class ProcessKind(StrEnum):
    """What kind of process it is.

    mps-client: works through an MPS server. The server is listed too, as ``mps-server``, with memory of its
    own. Depending on GPU and driver, the memory of a client is counted for the client or for the server
    (before Volta always for the server), so the memory of a server belongs to no container.
    """

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS_CLIENT = "mps-client"
    MPS_SERVER = "mps-server"


def is_mps_program(name: str) -> bool:
    """Whether a process of this name is the MPS server (or the control program, which has no context).

    The kernel keeps 15 characters of a name: ``nvidia-cuda-mps``.
    """
    return name.startswith("nvidia-cuda-mps")


class GpuProcess(Frozen, omit_defaults=True):
    """One process on one GPU or MIG device.

    gpu: UUID of the GPU. device: UUID of the MIG device, None for the whole GPU; gi_id, ci_id: its
    instances.
    used_bytes: context, allocations and libraries, without managed memory. None if the driver does not
    report it (WSL, some vGPUs, MIG without permission).
    name: first 15 characters of the command's name. cgroups: lines of ``/proc/<pid>/cgroup``
    (``model.cgroup``).
    start: start time in clock ticks since boot; together with the pid it is unique. uid: the real user id.
    Empty or None if /proc does not show it: the process has ended, or may not be read.
    """

    gpu: GpuUuid
    pid: int
    used_bytes: int | None
    kind: ProcessKind
    device: MigUuid | None = None
    gi_id: int | None = None
    ci_id: int | None = None
    name: str = ""
    cgroups: tuple[str, ...] = ()
    start: int | None = None
    uid: int | None = None


class GpuMemory(Frozen, omit_defaults=True):
    """used_bytes: allocated memory of one GPU, without the driver's reserve if the driver reports that
    separately.

    None if the driver does not report it. Memory that no listed process uses belongs to the driver or to
    processes that are not visible.
    """

    gpu: GpuUuid
    used_bytes: int | None


class Processes(Frozen, omit_defaults=True):
    """All processes with contexts, by index of the GPU and pid, without this process.

    hidden: why some may be missing, a sentence; empty if none is missing. The driver reports only pids of
    the caller's pid namespace; it leaves out the others without an error. If it is not known that this is
    the node's namespace, ``hidden`` is not empty.
    """

    rows: tuple[GpuProcess, ...] = ()
    memory: tuple[GpuMemory, ...] = ()
    hidden: str = ""


class LeftProcess(Frozen, omit_defaults=True):
    """A process of a pod that has a thread which lives, whatever its leader does.

    state: of that thread, a letter as in proc_pid_stat(5). name: as in ``GpuProcess``.
    """

    pod: PodUid
    container: ContainerId
    pid: int
    name: str = ""
    state: str = ""

    def __str__(self) -> str:
        return f"process {self.name or '?'} (pid {self.pid})"


class Left(Frozen, omit_defaults=True):
    """What still runs of some pods, without their sandboxes; of each the first few processes.

    unseen: why nobody can look here, a sentence; then nothing is known.
    """

    processes: tuple[LeftProcess, ...] = ()
    unseen: str = ""


class JobProcess(Frozen):
    """A process on a GPU. gpu: its index; device: NVML's name of its MIG device, ``3:1``; empty: the GPU.

    used_bytes: None: not known. job, step: of Slurm; empty: it belongs to no job. uid: None: not known.
    user: empty: not known. share: what its job holds of this device, ``mps:25 of 100``; empty: not known.
    """

    gpu: int
    device: str
    pid: int
    name: str
    used_bytes: int | None
    job: str = ""
    step: str = ""
    uid: int | None = None
    user: str = ""
    share: str = ""


UsersOf = Callable[[DeviceUuid, Collection[int]], Awaitable[tuple[str, ...]]]
"""Asks who uses a GPU or MIG device besides processes with these pids: a name for each. Raises HardwareError
where that cannot be seen."""


async def nobody(device: DeviceUuid, without: Collection[int]) -> tuple[str, ...]:
    """A ``UsersOf`` for who knows that there are none."""
    del device, without
    return ()

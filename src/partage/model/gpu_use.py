"""What uses a GPU or a part of it: a pod, a process, a monitor."""

from __future__ import annotations

from enum import StrEnum

from partage.model.gpu import MigDevice
from partage.model.ids import GpuUuid, MigUuid
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

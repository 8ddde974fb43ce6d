"""The place of a tenant: the device, and the environment that a container there has in each mode."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from partage.model.ids import DeviceUuid, GpuUuid
from partage.values import Frozen

NO_DAEMON = "/nonexistent/partage-lab"
"""A pipe directory without a daemon: a process that cannot connect to one works as it would without MPS
(nvidia-cuda-mps-control(1)), even where a daemon runs at the default place."""

MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_CLEARED = (
    "CUDA_VISIBLE_DEVICES",
    PIPE_VARIABLE,
    MEMORY_VARIABLE,
    THREADS_VARIABLE,
    "PARTAGE_GUARD",
    "PARTAGE_GUARD_APPLIED",
)


class TenantMode(StrEnum):
    """How tenants use a device.

    alone: one process. one-after-the-other: all are there, one computes at a time. parallel: at the same
    time on the CPU, which says nothing about a GPU. without-guard, with-guard: one process, started again
    for each repeat.
    """

    ALONE = "alone"
    SEQUENTIAL = "one-after-the-other"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"
    PARALLEL = "parallel"
    WITHOUT_GUARD = "without-guard"
    WITH_GUARD = "with-guard"

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self]


_WORDS = {
    TenantMode.ALONE: "alone",
    TenantMode.SEQUENTIAL: "one after the other",
    TenantMode.TIME_SLICING: "time-slicing",
    TenantMode.MPS: "MPS",
    TenantMode.MIG: "MIG, a device each",
    TenantMode.PARALLEL: "parallel, on the CPU",
    TenantMode.WITHOUT_GUARD: "without the guard",
    TenantMode.WITH_GUARD: "with the guard",
}


class TenantPlace(Frozen):
    """A device and what surrounds it.

    device: UUID of the GPU, or of the MIG device that stands for it; empty on the CPU.
    mig: UUIDs of MIG devices of one GPU, one for each process. pipe: of an MPS control daemon for ``device``.
    guard: the directory that a container has on its PYTHONPATH. driver_root: where the driver is installed.
    memory_bytes: of the device; share_bytes: of a share of it.
    exclusive: the GPU is in exclusive-process mode.
    """

    device: DeviceUuid = GpuUuid("")
    mig: tuple[DeviceUuid, ...] = ()
    pipe: Path | None = None
    guard: Path | None = None
    memory_bytes: int = 0
    share_bytes: int = 0
    driver_root: Path = Path("/")
    exclusive: bool = False

    @property
    def on_gpu(self) -> bool:
        return bool(self.device)

    def environment(self, mode: TenantMode, number: int = 0, limit: str = "") -> dict[str, str]:
        """Of tenant ``number``. limit: the client's own memory limit under MPS, ``0=8192M``."""
        found = {name: value for name, value in os.environ.items() if name not in _CLEARED}
        found["PARTAGE_GUARD"] = "off"
        if self.on_gpu:
            found.update(self._cuda(mode, number))
        if limit:
            found[MEMORY_VARIABLE] = limit
        if mode is TenantMode.WITH_GUARD and self.guard is not None:
            found.update(self._guarded(found))
        return found

    def _cuda(self, mode: TenantMode, number: int) -> dict[str, str]:
        pipe = self.pipe if mode is TenantMode.MPS else None
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": self.mig[number] if mode is TenantMode.MIG else self.device,
            PIPE_VARIABLE: NO_DAEMON if pipe is None else str(pipe),
        }

    def _guarded(self, environment: Mapping[str, str]) -> dict[str, str]:
        path = [str(self.guard), environment.get("PYTHONPATH", "")]
        share = self.share_bytes or self.memory_bytes
        return {
            "PYTHONPATH": os.pathsep.join(entry for entry in path if entry),
            "PARTAGE_GUARD": "",
            "PARTAGE_MEMORY_BYTES": str(share),
            "PARTAGE_TOTAL_BYTES": str(self.memory_bytes or share),
            **({"PARTAGE_GPUS": self.device} if self.on_gpu else {}),
        }

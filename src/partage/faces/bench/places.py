"""Where tenants run: the device, and what the environment of a tenant says about it in each mode."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from partage.faces.bench.model import Mode

NO_DAEMON = "/nonexistent/partage-bench"
"""A pipe directory without a daemon: a process that cannot connect to one works as it would without MPS
(nvidia-cuda-mps-control(1)), even where a daemon runs at the default place."""

_CLEARED = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "PARTAGE_GUARD",
    "PARTAGE_GUARD_APPLIED",
)


@dataclass(frozen=True, slots=True)
class Place:
    """device: UUID of the GPU, or of the MIG device that stands for it; empty on the CPU.

    mig: UUIDs of MIG devices of one GPU, one for each process. pipe: of an MPS control daemon for ``device``.
    driver_root: below which the MPS control program is. exclusive: the GPU is in exclusive-process mode.
    guard: the directory that a container has on its PYTHONPATH.
    memory_bytes: of the device; share_bytes: of a share of it.
    """

    device: str = ""
    mig: tuple[str, ...] = ()
    pipe: Path | None = None
    guard: Path | None = None
    memory_bytes: int = 0
    share_bytes: int = 0
    driver_root: Path = Path("/")
    exclusive: bool = False

    @property
    def on_gpu(self) -> bool:
        return bool(self.device)

    def modes(self, processes: int) -> tuple[Mode, ...]:
        """In which modes that many processes can run beside each other here, apart from the guard's."""
        if not self.on_gpu:
            return (Mode.ALONE,) if processes == 1 else (Mode.SEQUENTIAL, Mode.PARALLEL)
        plain = (Mode.ALONE,) if processes == 1 else (Mode.SEQUENTIAL, Mode.TIME_SLICING)
        mps = (Mode.MPS,) if self.pipe is not None else ()
        mig = (Mode.MIG,) if 1 < processes <= len(self.mig) else ()
        return plain + mps + mig

    def environment(self, mode: Mode, number: int = 0, limit: str = "") -> dict[str, str]:
        """Of tenant ``number``. limit: the client's own under MPS, ``0=8192M``."""
        found = {name: value for name, value in os.environ.items() if name not in _CLEARED}
        found["PARTAGE_GUARD"] = "off"
        if self.on_gpu:
            found.update(self._cuda(mode, number))
        if limit:
            found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = limit
        if mode is Mode.WITH_GUARD and self.guard is not None:
            found.update(self._guarded(found))
        return found

    def _cuda(self, mode: Mode, number: int) -> dict[str, str]:
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": self.mig[number] if mode is Mode.MIG else self.device,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)
            if mode is Mode.MPS and self.pipe is not None
            else NO_DAEMON,
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

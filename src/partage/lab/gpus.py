"""The GPUs of a node that an experiment may use, and what is on them."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from partage.errors import InputError, Unsatisfiable
from partage.model.gpu import Gpu, Inventory
from partage.model.gpu_use import GpuUse, UseKind


def find_gpu(inventory: Inventory, wanted: str | None) -> Gpu:
    """The GPU of that index or UUID, or the first. Raises InputError, Unsatisfiable."""
    if not inventory.gpus:
        raise Unsatisfiable("no GPU answers on this node")
    if wanted is None:
        return inventory.gpus[0]
    for gpu in inventory.gpus:
        if wanted in (str(gpu.index), gpu.uuid):
            return gpu
    known = ", ".join(str(gpu.index) for gpu in inventory.gpus)
    raise InputError(f"no GPU {wanted!r} answers on this node", f"GPUs that answer: {known}")


def is_workload(use: GpuUse) -> bool:
    """Whether it is a process with work of its own: no monitor, and no server of an MPS daemon."""
    return use.kind is not UseKind.MONITOR and "nvidia-cuda-mps" not in use.name


def mode_name(gpu: Gpu) -> str:
    """Its compute mode, ``exclusive-process``."""
    return gpu.compute_mode.name.lower().replace("_", "-")


def guard_directory() -> Path | None:
    """The guard in this installation, found without importing it; None where it is not installed."""
    path = Path(str(importlib.resources.files("partage"))) / "guard" / "site"
    return path if (path / "sitecustomize.py").is_file() else None

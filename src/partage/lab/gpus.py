"""The GPUs of a node that an experiment may use, and what is on them. Attacks are tried where nothing else
is.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Mapping
from pathlib import Path

from partage.errors import InputError, Unsatisfiable
from partage.model.gpu import Gpu, Inventory
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import GpuUuid
from partage.text import gpus, listed
from partage.values import grouped


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


_MOST_NAMES = 3


def holders(
    inventory: Inventory, uses: Iterable[GpuUse], pods: Mapping[int, Iterable[str]]
) -> dict[GpuUuid, list[str]]:
    """GPU UUID to what works on it or holds a share of it, by driver, kubelet and agent.

    pods: GPU index to the pods that hold shares of it, as the agent reports them.
    """
    found = grouped((use.gpu, str(use)) for use in uses if is_workload(use))
    for gpu in inventory:
        for pod in pods.get(gpu.index, ()):
            found.setdefault(gpu.uuid, []).append(f"pod {pod}")
    return {gpu: list(dict.fromkeys(names)) for gpu, names in found.items()}


def free_gpus(inventory: Inventory, wanted: str | None, held: Mapping[GpuUuid, list[str]]) -> tuple[Gpu, ...]:
    """The GPU of that index or UUID, or all. Raises InputError; Unsatisfiable where one is in use."""
    first = find_gpu(inventory, wanted)
    found = inventory.gpus if wanted is None else (first,)
    for gpu in found:
        if names := held.get(gpu.uuid):
            idle = [idle_gpu.index for idle_gpu in inventory if idle_gpu.uuid not in held]
            hint = f"{gpus(idle)}: not in use; --gpu INDEX tries that one alone" if idle else ""
            raise Unsatisfiable(
                f"GPU {gpu.index} is held by {listed(names, _MOST_NAMES)}, which an attack could hit",
                hint or "wait until a GPU is idle",
            )
    return found


def require_visible_processes(why: str) -> None:
    """Raises Unsatisfiable where other processes may be there and cannot be seen. why: empty: they can."""
    if why:
        raise Unsatisfiable(
            f"other processes on the GPUs cannot be seen from here: {why}", "--alone says that there are none"
        )

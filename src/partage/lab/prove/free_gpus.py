"""On which GPUs attacks may be tried: those that nothing else uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from partage.errors import Unsatisfiable
from partage.lab.gpus import find_gpu, is_workload
from partage.model.gpu import Gpu, Inventory
from partage.model.gpu_use import GpuUse
from partage.model.ids import GpuUuid
from partage.text import gpus, listed

_MOST_NAMES = 3


def holders(
    inventory: Inventory, uses: Iterable[GpuUse], pods: Mapping[int, Iterable[str]]
) -> dict[GpuUuid, list[str]]:
    """GPU UUID to what works on it or holds a share of it, by driver, kubelet and agent.

    pods: GPU index to the pods that hold shares of it, as the agent reports them.
    """
    found: dict[GpuUuid, list[str]] = {}
    for use in uses:
        if is_workload(use):
            found.setdefault(use.gpu, []).append(str(use))
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
            idle = [one.index for one in inventory if one.uuid not in held]
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

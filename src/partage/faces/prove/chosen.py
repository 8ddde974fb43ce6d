"""On which GPUs a proof may try anything: those on which nobody can be hit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from partage.errors import Unsatisfiable
from partage.faces.bench.node import chosen, computes
from partage.faces.reported import Reported
from partage.faces.words import gpus, listed
from partage.model.gpu import Gpu, Inventory
from partage.model.step import GpuUse

_MOST_NAMES = 3


def holders(inventory: Inventory, uses: Iterable[GpuUse], report: Reported | None) -> dict[str, list[str]]:
    """GPU UUID to who works on it or holds a share of it, by driver, kubelet and the agent's report."""
    found: dict[str, list[str]] = {}
    for use in uses:
        if computes(use):
            found.setdefault(use.gpu, []).append(str(use))
    indexes = {gpu.index: gpu.uuid for gpu in inventory}
    for share in report.held if report is not None else ():
        if share.gpu in indexes:
            names = [name.rpartition("/")[0] for name in share.holders] or ["somebody"]
            found.setdefault(indexes[share.gpu], []).append(f"pod {' or '.join(names)}")
    return {gpu: list(dict.fromkeys(names)) for gpu, names in found.items()}


def free_gpus(inventory: Inventory, wanted: str | None, held: Mapping[str, list[str]]) -> tuple[Gpu, ...]:
    """The GPU of that index or UUID, or all. Raises InputError, Unsatisfiable where somebody is on one."""
    found = (chosen(inventory, wanted),) if wanted is not None else inventory.gpus
    if not found:
        raise Unsatisfiable("no GPU answers on this node")
    for gpu in found:
        if names := held.get(gpu.uuid):
            idle = [one.index for one in inventory if one.uuid not in held]
            hint = f"{gpus(idle)}: nobody is there; --gpu INDEX tries that one alone" if idle else ""
            raise Unsatisfiable(
                f"GPU {gpu.index} is held by {listed(names, _MOST_NAMES)}, whom a proof could hit",
                hint or "wait until somebody's GPU is idle",
            )
    return found


def refuse_blind(why: str) -> None:
    """Raises Unsatisfiable where other processes may be there and not be seen. why: empty: they are seen."""
    if why:
        raise Unsatisfiable(
            f"who else is on the GPUs cannot be seen from here: {why}", "--alone says that nobody is"
        )

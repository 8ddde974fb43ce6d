"""Holds that exclude each other: what one of their containers was promised is not true any more. Pure.

The planner never allows them. They come from a kubelet that lost its checkpoint, or from a second device
plugin on the node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from msgspec import field

from partage.model.gpu import Gpu, gpu_of_mig_devices
from partage.model.ids import DeviceUuid, GpuUuid, device_of, parse_share_id
from partage.plan.reconcile.transition import GpuServing, foreign_holds
from partage.plan.serve.ledger_entry import Certainty, HeldIds, Hold, LedgerEntry
from partage.values import Frozen

SHOWN = 4
"""Holds that a message lists."""


class Conflicts(Frozen):
    """found: by GPU, a sentence. suspected: holds that the kubelet's checkpoint has to confirm first, because
    PodResources can name pods that ended."""

    found: Mapping[GpuUuid, str] = field(default_factory=dict)
    suspected: frozenset[Hold] = frozenset()


def conflicts(
    served: Mapping[GpuUuid, GpuServing],
    held: HeldIds,
    entries: Iterable[LedgerEntry],
    known: Mapping[GpuUuid, Gpu],
    *,
    checkpoint: bool = True,
) -> Conflicts:
    """The conflicts of a node. known: GPUs with the MIG devices that exist now; holds of other devices are
    left out, and holds that are not confirmed. checkpoint: False: there is none to confirm them, and what
    PodResources names counts."""
    gpu_of: dict[DeviceUuid, GpuUuid] = {uuid: uuid for uuid in known}
    gpu_of |= gpu_of_mig_devices(known.values())
    by_gpu: dict[GpuUuid, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        gpu = gpu_of.get(device_of(entry.id))
        if gpu is not None and entry.certainty not in (Certainty.UNCONFIRMED, Certainty.ENDING):
            by_gpu[gpu].append(entry)
    foreign = {gpu: frozenset(holds) for gpu, holds in foreign_holds(served, held, gpu_of).items()}
    found: dict[GpuUuid, str] = {}
    suspected: set[Hold] = set()
    for gpu, holds in by_gpu.items():
        excluding = _exclude_each_other(gpu, holds, foreign.get(gpu, ()))
        suspected |= {entry.hold for entry in holds if excluding or _pods_of(entry, checkpoint=False) > 1}
        pods = [(entry, _pods_of(entry, checkpoint=checkpoint)) for entry in holds]
        certain = [entry for entry, count in pods if count]
        if twice := [entry for entry, count in pods if count > 1]:
            found[gpu] = f"several pods hold the same share: {_list(twice)}"
        elif _exclude_each_other(gpu, certain, foreign.get(gpu, ())):
            found[gpu] = f"shares are held that exclude each other: {_list(certain)}"
    return Conflicts(found, frozenset(suspected))


def _pods_of(entry: LedgerEntry, *, checkpoint: bool) -> int:
    """How many pods hold it. What Allocate gave last is one pod's; PodResources may name pods that ended
    (before Kubernetes 1.36), so the checkpoint has to confirm what it names.
    A claim counts as one: its pods share it."""
    if entry.certainty in (Certainty.TENTATIVE, Certainty.CLAIMED):
        return 1
    return min(len(entry.pods), entry.checkpoint_pods) if checkpoint else len(entry.pods)


def _exclude_each_other(gpu: GpuUuid, holds: Collection[LedgerEntry], foreign: Collection[Hold]) -> bool:
    """A whole device beside anything else of it, a GPU beside its MIG devices, shares of two offers."""
    by_device: dict[DeviceUuid, list[LedgerEntry]] = defaultdict(list)
    for entry in holds:
        by_device[device_of(entry.id)].append(entry)
    whole = any(
        len(several) > 1 and any(parse_share_id(entry.id)[1] is None for entry in several)
        for several in by_device.values()
    )
    mixed = len({entry.hold in foreign for entry in holds}) > 1
    return whole or (gpu in by_device and len(by_device) > 1) or mixed


def _list(holds: Iterable[LedgerEntry]) -> str:
    """The holds, sorted, with their pods; the first few."""
    ordered = sorted(holds, key=lambda entry: entry.hold)
    texts = [f"{entry.resource} {entry.id} by {_pods(entry)}" for entry in ordered[:SHOWN]]
    more = len(ordered) - len(texts)
    return ", ".join(texts) + (f", and {more} more" if more else "")


def _pods(entry: LedgerEntry) -> str:
    return " and ".join(sorted("/".join(pod) for pod in entry.pods)) or "a pod that is not named yet"

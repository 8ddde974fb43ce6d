"""What a pod asks for on each kind of node, and why it fits on none, which may be empty. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from partage.model.allocation import AllocationRefused
from partage.whatif.decide.demand import Cause, Demand, Unmet, demand_on, nearness
from partage.whatif.decide.node_devices import NodeAllocator
from partage.whatif.decide.node_offer import NodeOffer
from partage.whatif.decide.pods import NodeKind, PodWants


def need_of(wants: PodWants, kind: NodeKind, offer: NodeOffer) -> Demand | Unmet:
    """What a pod asks for on a node of that kind, or why it fits on none, which may be empty."""
    need = demand_on(wants, kind, offer)
    if isinstance(need, Unmet):
        return need
    if kind.cpu_milli is not None and wants.cpu_milli > kind.cpu_milli:
        return Unmet(Cause.CPU, kind.cpu_milli)
    if kind.memory_bytes is not None and wants.memory_bytes > kind.memory_bytes:
        return Unmet(Cause.MEMORY, kind.memory_bytes)
    for name, count in need:
        offered = len(offer.resources[name].ids)
        if count > offered:
            return Unmet(Cause.GPUS, offered)
    try:
        NodeAllocator(offer).allocate(need, 0.0)
    except AllocationRefused as refusal:
        return Unmet(Cause.REFUSED, text=str(refusal))
    return need


def never_fits(needs: Sequence[Demand | Unmet]) -> Unmet | None:
    """Why it fits on no kind of node; None: it fits on one. The reason that is nearest to fitting."""
    unmet = [need for need in needs if isinstance(need, Unmet)]
    if not unmet or len(unmet) < len(needs):
        return None
    return max(unmet, key=nearness)

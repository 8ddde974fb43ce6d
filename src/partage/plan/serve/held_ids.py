"""The held ids of a node, as offers and lists need them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from msgspec import field

from partage.model.ids import ResourceName, ShareId
from partage.plan.serve.ledger_entry import Certainty, LedgerEntry
from partage.values import Frozen


class HeldIds(Frozen):
    """Ids held now, by resource, for all GPUs.

    admitted: those whose pod the running kubelet has admitted. largest: how many ids of a resource one pod
    holds at most. left: those that no container holds, only processes that are left of former holders.
    """

    ids: Mapping[ResourceName, frozenset[ShareId]] = field(default_factory=dict)
    admitted: Mapping[ResourceName, frozenset[ShareId]] = field(default_factory=dict)
    largest: Mapping[ResourceName, int] = field(default_factory=dict)
    left: Mapping[ResourceName, frozenset[ShareId]] = field(default_factory=dict)


def held_ids(entries: Iterable[LedgerEntry]) -> HeldIds:
    """The ids of these entries."""
    ids: dict[ResourceName, set[ShareId]] = defaultdict(set)
    admitted: dict[ResourceName, set[ShareId]] = defaultdict(set)
    left: dict[ResourceName, set[ShareId]] = defaultdict(set)
    pods: dict[ResourceName, Counter[tuple[str, str]]] = defaultdict(Counter)
    for entry in entries:
        resource = entry.resource
        ids[resource].add(entry.id)
        if entry.admitted:
            admitted[resource].add(entry.id)
        if entry.left:
            left[resource].add(entry.id)
        if entry.certainty is not Certainty.ENDING:
            counts = pods[resource]
            for pod in entry.pods if entry.holders else ():
                counts[pod] += 1
    largest = {resource: max(counts.values(), default=1) for resource, counts in pods.items()}
    return HeldIds(_frozen(ids), _frozen(admitted), largest, _frozen(left))


def _frozen(ids: Mapping[ResourceName, set[ShareId]]) -> dict[ResourceName, frozenset[ShareId]]:
    return {resource: frozenset(some) for resource, some in ids.items()}

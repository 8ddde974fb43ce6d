"""The UIDs of pods that events are about: ``kubectl describe pod`` finds events by UID. Pure.

PodResources names pods by name, the kubelet's checkpoint by UID. Both name the same id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from partage.kubernetes.decide.events import NodeEvent, PodName
from partage.model.ids import PodUid
from partage.model.share import CheckpointHolds
from partage.plan.cluster.conditions import certain_holder
from partage.plan.serve.ledger_entry import LedgerEntry


def with_uids(
    events: Iterable[NodeEvent], entries: Collection[LedgerEntry], holds: CheckpointHolds
) -> tuple[NodeEvent, ...]:
    """The events, with the UIDs of their pods where these are certain. holds: of the kubelet's checkpoint."""
    return tuple(_with_uid(event, entries, holds) for event in events)


def _with_uid(event: NodeEvent, entries: Collection[LedgerEntry], holds: CheckpointHolds) -> NodeEvent:
    if event.about is None or event.about.uid:
        return event
    return replace(event, about=replace(event.about, uid=_uid(event.about, entries, holds)))


def _uid(pod: PodName, entries: Collection[LedgerEntry], holds: CheckpointHolds) -> PodUid:
    """Empty where the checkpoint names another number of pods than one for an id that the pod holds."""
    named: set[frozenset[PodUid]] = set()
    for entry in entries:
        holder = certain_holder(entry)
        if holder is not None and (holder.namespace, holder.pod) == (pod.namespace, pod.name):
            named.add(holds.get(entry.resource, {}).get(entry.id, frozenset()))
    return next(iter(named.pop())) if len(named) == 1 and len(next(iter(named))) == 1 else PodUid("")

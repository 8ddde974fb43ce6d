"""A policy as a provider's rules see it: one group for each entry."""

from __future__ import annotations

from partage.model.policy import (
    AllDevices,
    Exclusive,
    GpuCriteria,
    GpuEntry,
    Mps,
    Policy,
    RemainingGpus,
    ResourceEntry,
    Sharing,
    Strategy,
    TimeSlicing,
)
from partage.plan.providers.rules import MigType
from partage.plan.providers.subjects import Group

_TYPES = {"none": MigType.NONE_WITH_OPERATOR, "single": MigType.SINGLE, "mixed": MigType.MIXED}


def groups_of(policy: Policy) -> list[Group]:
    """The entries of a policy, as groups. What they select is not looked at beyond whether it is all GPUs."""
    return [_group(entry, policy) for entry in policy.entries]


def _group(entry: GpuEntry | ResourceEntry, policy: Policy) -> Group:
    mig, layout, profiles = _mig(entry, policy)
    return Group(
        at=(entry.origin,),
        who=entry.origin,
        sharing=_strategy(entry.sharing),
        replicas=1 if isinstance(entry.sharing, Exclusive) else entry.sharing.replicas,
        mig=mig,
        layout=layout,
        profiles=profiles,
        unequal=isinstance(entry.sharing, Mps) and bool(entry.sharing.clients),
        part=_part(entry),
    )


def _mig(entry: GpuEntry | ResourceEntry, policy: Policy) -> tuple[MigType, str | None, tuple[str, ...]]:
    kind = _TYPES[policy.options.mig_strategy]
    if isinstance(entry, ResourceEntry):
        return (kind, None, ())
    if entry.mig is None or not entry.mig.enabled:
        return (MigType.NONE_WITH_OPERATOR, None, ())
    return (kind, entry.mig.named, tuple(str(item.profile) for item in entry.mig.items))


def _strategy(sharing: Sharing) -> Strategy:
    match sharing:
        case TimeSlicing():
            return Strategy.TIME_SLICING
        case Mps():
            return Strategy.MPS
        case Exclusive():
            return Strategy.EXCLUSIVE


def _part(entry: GpuEntry | ResourceEntry) -> bool:
    """Whether the entry selects some GPUs of a node only. A model is taken for that of the whole node."""
    if isinstance(entry, ResourceEntry):
        return not isinstance(entry.devices, AllDevices)
    select = entry.select
    if isinstance(select, GpuCriteria):
        return bool(select.index or select.uuid or select.pci or select.device_filter)
    return not isinstance(select, AllDevices | RemainingGpus)

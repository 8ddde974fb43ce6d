"""What a provider's rules judge: worker groups, entries of a policy, pods; each with its place. A policy is
one group for each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import field
from msgspec.structs import replace

from partage.errors import Severity
from partage.model.geometry import Geometry
from partage.model.policy import (
    AllDevices,
    Exclusive,
    GpuCriteria,
    GpuEntry,
    Policy,
    RemainingGpus,
    ResourceEntry,
    Sharing,
    clients_of,
)
from partage.model.strategy import Strategy
from partage.providers.decide.rules import MigType
from partage.values import Frozen

Keys = tuple[str | int, ...]
"""The way to a place in a document."""


class LayoutTable(Frozen):
    """The layouts that the provider publishes for a model. wrong: a misprinted profile list, by name, with
    what was meant."""

    models: tuple[str, ...]
    title: str
    names: tuple[str, ...]
    wrong: Mapping[str, str] = field(default_factory=dict)


class Model(Frozen):
    """What is known of a group's GPU. geometry: None without MIG, or if its placements are not known; mig
    tells them apart."""

    id: str
    memory_bytes: int
    mig: bool
    geometry: Geometry | None = None


class Group(Frozen):
    """GPUs that are used in one way: a worker group, or an entry of a policy.

    at: its place. who: its name in messages. model: None: any. gpus: of one node; None: not known. mig:
    None: not said. layout: its name; profiles: its MIG devices. replicas: 1 for exclusive, None: not said.
    unequal: its shares are not equal. part: it takes only some GPUs of a node.
    """

    at: Keys
    who: str
    sharing: Strategy = Strategy.EXCLUSIVE
    replicas: int | None = None
    mig: MigType = MigType.NONE
    model: Model | None = None
    gpus: int | None = None
    layout: str | None = None
    profiles: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    unequal: bool = False
    part: bool = False


class ManifestContainer(Frozen):
    """at: its ``resources.limits``. limits: resource to amount, as written."""

    at: Keys
    who: str
    limits: Mapping[str, Any]


class ManifestPod(Frozen):
    """at: its spec. selector: its ``nodeSelector``."""

    at: Keys
    who: str
    host_ipc: bool
    selector: Mapping[str, str]
    containers: tuple[ManifestContainer, ...]


class RuleViolation(Frozen):
    """What breaks a rule, and where."""

    severity: Severity
    at: Keys
    message: str
    hint: str = ""


_TYPES = {"none": MigType.NONE_WITH_OPERATOR, "single": MigType.SINGLE, "mixed": MigType.MIXED}


def groups_of(policy: Policy, model_of: Callable[[str], Model | None]) -> list[Group]:
    """The entries of a policy, as groups: one for each model that an entry names. What they select is not
    looked at beyond that, and whether it is all GPUs. model_of: a model by its name; None: not known.
    """
    groups: list[Group] = []
    for entry in policy.entries:
        group = _group(entry, policy)
        select = entry.select if isinstance(entry, GpuEntry) else None
        names = select.model if isinstance(select, GpuCriteria) else ()
        models = [model for name in names if (model := model_of(name)) is not None]
        groups += [replace(group, model=model) for model in models] or [group]
    return groups


def _group(entry: GpuEntry | ResourceEntry, policy: Policy) -> Group:
    mig, layout, profiles = _mig(entry, policy)
    return Group(
        at=(entry.origin,),
        who=entry.origin,
        sharing=entry.sharing.strategy,
        replicas=_replicas(entry.sharing),
        mig=mig,
        layout=layout,
        profiles=profiles,
        unequal=_unequal(entry.sharing),
        part=_part(entry),
    )


def _mig(entry: GpuEntry | ResourceEntry, policy: Policy) -> tuple[MigType, str | None, tuple[str, ...]]:
    kind = _TYPES[policy.options.mig_strategy]
    if isinstance(entry, ResourceEntry):
        return (kind, None, ())
    if entry.mig is None or not entry.mig.enabled:
        return (MigType.NONE_WITH_OPERATOR, None, ())
    return (kind, entry.mig.named, tuple(str(item.profile) for item in entry.mig.items))


def _replicas(sharing: Sharing) -> int | None:
    """None for amounts of memory: each tenant asks for as much as it needs."""
    if isinstance(sharing, Exclusive):
        return 1
    return None if sharing.units is not None else sharing.replicas


def _unequal(sharing: Sharing) -> bool:
    if isinstance(sharing, Exclusive):
        return False
    return sharing.units is not None or bool(clients_of(sharing))


def _part(entry: GpuEntry | ResourceEntry) -> bool:
    """Whether the entry selects some GPUs of a node only. A model is taken for that of the whole node."""
    if isinstance(entry, ResourceEntry):
        return not isinstance(entry.devices, AllDevices)
    select = entry.select
    if isinstance(select, GpuCriteria):
        return bool(select.index or select.uuid or select.pci or select.device_filter)
    return not isinstance(select, AllDevices | RemainingGpus)

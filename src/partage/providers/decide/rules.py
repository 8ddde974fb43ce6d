"""The kinds of rules that a provider can have, and what they judge: worker groups, entries of a policy, pods,
each with its place. A policy is one group for each entry.

The list is closed; a provider's file says which, with what numbers, and where each is from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import field
from msgspec.structs import replace

from partage.errors import Severity
from partage.model.geometry import GpuModel
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
from partage.values import Frozen, Tagged


class MigType(StrEnum):
    """How the MIG devices of a worker group are named, or that there are none.

    none: no MIG, and who uses the group installs what it needs. none-with-operator: no MIG, and the provider
    manages the group.
    """

    NONE = "none"
    NONE_WITH_OPERATOR = "none-with-operator"
    SINGLE = "single"
    MIXED = "mixed"

    @property
    def mig(self) -> bool:
        """Its GPUs have MIG devices."""
        return self in (MigType.SINGLE, MigType.MIXED)


class Rule(Tagged, kw_only=True, forbid_unknown_fields=True):
    """source: where the rule is from. severity: of what breaks it. hint: what to do; empty: the usual one."""

    source: str
    severity: Severity = "error"
    hint: str = ""


class Replicas(Rule, kw_only=True):
    """Shares of a device under ``sharing``: from ``least`` to ``most``. doubtful_over: above it a warning."""

    sharing: Strategy
    least: int = 2
    most: int | None = None
    doubtful_over: int | None = None


class EqualShares(Rule, kw_only=True):
    """All MPS shares of a GPU are equal."""


class OneMigType(Rule, kw_only=True):
    """All worker groups of a cluster have one kind of MIG: single, mixed or none."""


class MigSharing(Rule, kw_only=True):
    """Groups of these MIG types do not have this sharing."""

    mig: tuple[MigType, ...]
    sharing: tuple[Strategy, ...]


class OneWayPerNode(Rule, kw_only=True):
    """All GPUs of a node are shared in one way."""


class MigModels(Rule, kw_only=True):
    """MIG only on the models in the provider's tables."""


class LayoutOfGpu(Rule, kw_only=True):
    """A group's layout and profiles exist on its GPU; MIG is only on GPUs that have it."""


class ListedLayouts(Rule, kw_only=True):
    """A group's layout is one of those in the provider's tables for that GPU."""


class UniformSingle(Rule, kw_only=True):
    """Under MIG type ``single`` all MIG devices have one profile."""


class Request(Rule, kw_only=True):
    """A container on GPUs shared so asks for at most ``most``. alone_on_one_gpu: on nodes with one GPU for
    more."""

    sharing: Strategy
    most: int = 1
    alone_on_one_gpu: bool = False


class HostIpc(Rule, kw_only=True):
    """Pods on GPUs shared so set ``hostIPC: true``."""

    sharing: Strategy


class OfferedNames(Rule, kw_only=True):
    """Resources of whole GPUs, and of shares. MIG devices under ``mixed`` are named by profile."""

    whole: tuple[str, ...] = ("nvidia.com/gpu",)
    shared: tuple[str, ...] = ("nvidia.com/gpu",)


class ModeLabel(Rule, kw_only=True):
    """This label of a node says how its GPUs are shared: value to strategy. needed: shared groups have it."""

    key: str
    modes: Mapping[str, Strategy]
    needed: tuple[Strategy, ...] = ()


class NeededLabel(Rule, kw_only=True):
    """Groups shared so have this label."""

    sharing: Strategy
    key: str
    value: str


class LabelValues(Rule, kw_only=True):
    """The values that a label of nodes can have."""

    key: str
    values: tuple[str, ...]


class CountLabel(Rule, kw_only=True):
    """A label with the number of shares of a GPU."""

    key: str
    least: int
    most: int


class ProfileLabel(Rule, kw_only=True):
    """A label with the MIG profile of a group."""

    key: str


class Amount(Rule, kw_only=True):
    """The amount of a resource: whole, ``least`` or more, a multiple of ``multiple_of``. gpu_memory: it is
    GiB, and no more than one GPU has. most: None without a limit.
    """

    resource: str
    least: int = 1
    most: int | None = None
    multiple_of: int = 1
    gpu_memory: bool = False


class ResourceNeeds(Rule, kw_only=True):
    """Only nodes whose label has one of ``values`` offer the resource. absent: so do those without it."""

    resource: str
    key: str
    values: tuple[str, ...]
    absent: bool = False


class OneOfResources(Rule, kw_only=True, tag="not-together"):
    """A pod asks for only one of these resources."""

    resources: tuple[str, ...]


AnyRule = (
    Replicas
    | EqualShares
    | OneMigType
    | MigSharing
    | OneWayPerNode
    | MigModels
    | LayoutOfGpu
    | ListedLayouts
    | UniformSingle
    | Request
    | HostIpc
    | OfferedNames
    | ModeLabel
    | NeededLabel
    | LabelValues
    | CountLabel
    | ProfileLabel
    | Amount
    | ResourceNeeds
    | OneOfResources
)


class Provider(Frozen, forbid_unknown_fields=True):
    """The rules of a provider. tables: whose published MIG layouts count; empty: nobody's."""

    name: str
    title: str
    rules: tuple[AnyRule, ...]
    tables: str = ""


Keys = tuple[str | int, ...]
"""The way to a place in a document."""


class LayoutTable(Frozen):
    """The layouts that the provider publishes for a model. wrong: a misprinted profile list, by name, with
    what was meant."""

    models: tuple[str, ...]
    title: str
    names: tuple[str, ...]
    wrong: Mapping[str, str] = field(default_factory=dict)


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
    model: GpuModel | None = None
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


def groups_of(policy: Policy, model_of: Callable[[str], GpuModel | None]) -> list[Group]:
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

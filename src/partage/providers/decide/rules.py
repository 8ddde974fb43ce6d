"""The kinds of rules that a provider can have. The list is closed; a provider's file says which, with what
numbers, and where each is from.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from partage.errors import Severity
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

"""The pods of a trace, and the nodes that they are played on, as values."""

from __future__ import annotations

from partage.claims.model.claim import ClaimSpec
from partage.model.gpu import Inventory
from partage.model.ids import ResourceName
from partage.values import Frozen


class AskedGpus(Frozen):
    """gpus: how many GPUs, or shares of one each; 0: none. gpu_milli: how much of each, in thousandths of a
    GPU; 0: an amount of memory says it.
    """

    gpus: int = 0
    gpu_milli: int = 0


class PodWants(AskedGpus, kw_only=True):
    """What a pod asks for. Pods that ask for the same are treated alike.

    cpu_milli, memory_bytes: of the node; 0: nothing asked. gpu_memory_bytes: of each GPU, in place of
    ``gpu_milli``.
    models: names of GPU models that it may have, in lower case; none: any.
    requests: resource names and amounts as in a manifest, in place of ``gpus``; sorted by name.
    claims: what its ResourceClaims ask for, in place of both.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0
    models: frozenset[str] = frozenset()
    requests: tuple[tuple[ResourceName, int], ...] = ()
    claims: tuple[ClaimSpec, ...] = ()

    @property
    def asks_for_gpus(self) -> bool:
        """Whether it asks for a GPU or a share of one."""
        return self.gpus > 0 or bool(self.requests) or bool(self.claims)


class TracePod(Frozen):
    """A pod of a trace. created_s: when it is created. lasts_s: how long it runs once started; None: it does
    not end. node: where it is or was in the cluster of the trace; empty: not said, or it had none.
    """

    name: str
    wants: PodWants
    created_s: float = 0.0
    lasts_s: float | None = None
    node: str = ""


class NamedNode(Frozen):
    """A node of a fleet. gpus: how many. model: as it is written there."""

    name: str
    model: str
    gpus: int


class NodeKind(Frozen):
    """Nodes that are alike. title: for messages. models: names by which a trace may call its GPUs, in lower
    case. cpu_milli, memory_bytes: what pods can have of the node; None: not known, and no limit.
    """

    title: str
    inventory: Inventory
    models: frozenset[str] = frozenset()
    cpu_milli: int | None = None
    memory_bytes: int | None = None


class Fleet(Frozen):
    """Nodes. names: of each node; kind_of: index of its kind, in the same order."""

    kinds: tuple[NodeKind, ...]
    names: tuple[str, ...]
    kind_of: tuple[int, ...]

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes."""
        each = [len(kind.inventory.gpus) for kind in self.kinds]
        return sum(each[kind] for kind in self.kind_of)

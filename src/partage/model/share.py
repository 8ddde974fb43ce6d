"""What is offered: devices under resource names, in shares, with the guarantee of each share; what a
container gets for its shares, and which container holds which, as in the kubelet's API, without gRPC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import field

from partage.model.driver_limit import DriverLimit
from partage.model.geometry import Placement
from partage.model.ids import (
    DEVICE_CLASSES,
    DeviceUuid,
    GpuUuid,
    PodUid,
    ResourceName,
    ShareId,
    share_id,
    unit_id,
)
from partage.model.strategy import Interval, Strategy, StrategyTraits, Via
from partage.text import shortened
from partage.values import Frozen, grouped


class Guarantee(StrEnum):
    """What a share guarantees about its memory, strongest first.

    hard:     the hardware or the driver's cgroup limit enforces it.
    guarded:  the limit of the MPS daemon equals the share, in exclusive-process mode, nobody who has the
    daemon's pipe can change it, and Partage watches the use.
    advisory: an environment variable or a framework's limit, which a tenant can remove.
    none:     nothing; when one tenant uses all memory, the others fail.
    """

    HARD = "hard"
    GUARDED = "guarded"
    ADVISORY = "advisory"
    NONE = "none"

    @property
    def strength(self) -> int:
        """3 for hard down to 0 for none."""
        return _STRENGTHS[self]

    @property
    def means(self) -> str:
        """What it means for the memory of a share, in words that follow its name."""
        return _MEANS[self]


_STRENGTHS = {guarantee: len(Guarantee) - 1 - place for place, guarantee in enumerate(Guarantee)}
_MEANS = {
    Guarantee.HARD: "GPU or driver holds it",
    Guarantee.GUARDED: "the MPS daemon refuses more",
    Guarantee.ADVISORY: "a tenant can lift the limit",
    Guarantee.NONE: "a neighbour can use all of it",
}


def weakest(guarantees: Iterable[Guarantee]) -> Guarantee:
    """The weakest one. Raises ValueError if there is none."""
    return min(guarantees, key=_STRENGTHS.__getitem__)


class DeviceOffer(Frozen):
    """One device (a GPU or a MIG device) offered under one resource name.

    device:      UUID of the device, or ``planned_uuid``; the ids of its shares begin with it.
    gpu:         UUID of the GPU that it is, or is part of.
    index:       its name under ``deviceIDStrategy: index``: ``0`` or ``0:1``.
    gpu_index:   NVML index of the GPU.
    resource:    the resource name for the kubelet.
    strategy:    of the GPU; shared: of the device itself (exclusive, time-slicing, mps).
    replicas:    number of shares of the *device*, 1 for exclusive. This offer holds the shares from
    ``first``,
                 ``count`` of them: all, except for unequal MPS clients.
    memory_bytes: memory of one share.
    threads_percent: share of the multiprocessors of one share under MPS; else None.
    nodes:       device files as paths below the device root, ``/dev/nvidia0``.
    single:      a container may hold one share only (``failRequestsGreaterThanOne``).
    placement:   of a MIG device that does not exist yet; None for a device that exists.
    profile:     of the MIG device; None for a GPU.
    limits_in_env: the share is smaller than the limit of the GPU's MPS daemon; its own limits are in the
                 container's environment.
    pipe:        directory below the daemon's pipe directory through which the share's clients connect: a
    namespace
                 of a named server (MPS v3). Empty: the pipe directory itself. With by_memory: the beginning
                 of a directory's name; ``pipe_of`` says how it goes on.
    by_memory:   its shares are units of memory: a container may hold several, all of one device.
    spread:      a container gets them where most is free, else where least is free that is enough.
    limited:     the driver holds each container to the memory of its shares, by a limit of its cgroup.
    via:         how pods ask for it. By claims, ``resource`` is the DeviceClass.
    """

    device: DeviceUuid
    gpu: GpuUuid
    index: str
    gpu_index: int
    resource: ResourceName
    strategy: Strategy
    shared: Strategy
    replicas: int
    memory_bytes: int
    guarantee: Guarantee
    first: int = 0
    count: int = 1
    threads_percent: int | None = None
    interval: Interval | None = None
    numa_node: int | None = None
    nodes: tuple[str, ...] = ()
    single: bool = False
    placement: Placement | None = None
    profile: str | None = None
    guard: bool = False
    limits_in_env: bool = False
    pipe: str = ""
    by_memory: bool = False
    spread: bool = False
    via: Via = Via.DEVICE_PLUGIN
    limited: bool = False

    @property
    def traits(self) -> StrategyTraits:
        """What the way is like in which the device itself is shared."""
        return self.shared.traits

    @property
    def in_slots(self) -> bool:
        """Each claim has a namespace of its own, whose limits are set for it (``model.mps.slot_name``)."""
        return bool(self.pipe) and self.by_memory and self.via is Via.CLAIMS

    def pipe_of(self, ids: Sequence[ShareId]) -> str:
        """Directory below the daemon's pipe directory for who holds these ids; empty: the pipe directory.

        Of units it ends in their number, or of a claim in the number of the first. Raises ValueError for ids
        of another offer.
        """
        if not (self.pipe and self.by_memory):
            return self.pipe
        if not self.in_slots:
            return f"{self.pipe}{len(ids)}"
        return f"{self.pipe}{self.first + min(map(self.share_ids.index, ids))}"

    @property
    def limit_bytes(self) -> int | None:
        """The driver's limit for one share, whole MiB; None: it sets none. Those of a container add up
        (``driver_limits``).
        """
        return self.memory_bytes if self.limited else None

    @property
    def planned(self) -> bool:
        """The device does not exist yet; its MIG layout is still to be made."""
        return self.placement is not None

    def share_id(self, number: int) -> ShareId:
        """The kubelet's id of one of its shares: ``<uuid>::<n>``, of a unit ``<uuid>-_-<n>``."""
        return (unit_id if self.by_memory else share_id)(self.device, number)

    @property
    def share_ids(self) -> tuple[ShareId, ...]:
        """The kubelet's device ids: the UUID itself for exclusive, else ``<uuid>::<n>``, of units
        ``<uuid>-_-<n>``.
        """
        if not self.traits.in_shares:
            return (share_id(self.device),)
        return tuple(self.share_id(n) for n in range(self.first, self.first + self.count))


GpuOffer = tuple[DeviceOffer, ...]
"""Everything that one GPU offers."""

NodeOffer = Mapping[GpuUuid, GpuOffer]
"""GPU UUID to its offer. A GPU that offers nothing (MIG mode without MIG devices) has an empty tuple."""


class Resource(Frozen):
    """Everything that is offered under one name, ordered by GPU index, MIG index and share."""

    name: ResourceName
    offerings: tuple[DeviceOffer, ...]

    @property
    def count(self) -> int:
        """Number of shares."""
        return sum(offering.count for offering in self.offerings)


class DeviceRow(Frozen):
    """One device in a ListAndWatch message to the kubelet. numa_node: None: no topology is sent."""

    id: ShareId
    healthy: bool
    numa_node: int | None = None


def resources_of(offer: NodeOffer) -> dict[ResourceName, Resource]:
    """The offers grouped by resource name; the names in the order of the first GPU that has them."""
    offerings = (offering for gpu_offer in offer.values() for offering in gpu_offer)
    rows = grouped((offering.resource, offering) for offering in sorted(offerings, key=node_order))
    return {name: Resource(name, tuple(offerings)) for name, offerings in rows.items()}


def driver_limits(shares: Iterable[tuple[GpuUuid, int | None]]) -> tuple[DriverLimit, ...]:
    """The limits of a container that holds these shares, one for each GPU, in the order of the shares.

    shares: the GPU of each, and the limit of one; None: the driver sets none.
    """
    sums = Counter[GpuUuid]()
    for gpu, limit in shares:
        if limit is not None:
            sums[gpu] += limit
    return tuple(DriverLimit(gpu, limit_bytes) for gpu, limit_bytes in sums.items())


def plugin_resources(offer: NodeOffer) -> dict[ResourceName, Resource]:
    """``resources_of`` what the device plugin offers: claims ask for the rest."""
    return {name: one for name, one in resources_of(offer).items() if name not in DEVICE_CLASSES}


def node_order(offering: DeviceOffer) -> tuple[int, int, int]:
    """The order of a node's offers: by GPU index, MIG index and first share."""
    _, _, mig_index = offering.index.partition(":")
    return offering.gpu_index, int(mig_index or -1), offering.first


LONGEST_REFUSAL = 500
"""Characters. A refusal repeats what was asked for, and writing a long gRPC status takes seconds."""


class AllocationRefused(Exception):
    """A request for shares that cannot be met. The kubelet shows the text in the pod's events."""

    def __init__(self, reason: str) -> None:
        super().__init__(shortened(reason, LONGEST_REFUSAL))


class Mount(Frozen):
    """A host path that is mounted into a container."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceNode(Frozen):
    """A device file in a container. permissions: some of ``rwm`` (read, write, mknod)."""

    container_path: str
    host_path: str
    permissions: str = "rw"


class ContainerAllocation(Frozen):
    """The answer to Allocate for one container. cdi_devices: full CDI names, ``vendor/class=name``.

    limits: what the driver has to hold it to before its first instruction; not part of what the kubelet gets.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    limits: tuple[DriverLimit, ...] = ()


class ContainerHold(Frozen):
    """One container and the ids of one resource that it holds, as PodResources reports them."""

    namespace: str
    pod: str
    container: str
    resource: ResourceName
    ids: tuple[ShareId, ...]


CheckpointHolds = Mapping[ResourceName, Mapping[ShareId, frozenset[PodUid]]]
"""Held ids, by resource, in the kubelet's checkpoint, and the UIDs of the pods that hold each."""

"""What is offered: a device under a resource name, in a number of shares, with what each guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from partage.model.ids import ResourceName, ShareId
from partage.model.policy import Interval, Strategy


class Guarantee(StrEnum):
    """What a share guarantees about its memory, strongest first.

    hard:     the hardware or the driver's cgroup limit holds it.
    guarded:  the MPS daemon's own limit equals the share, in exclusive-process mode, watched from the host.
    advisory: a variable or a framework's cap that a tenant can drop.
    none:     nothing; one tenant's out-of-memory hits the others.
    """

    HARD = "hard"
    GUARDED = "guarded"
    ADVISORY = "advisory"
    NONE = "none"

    @property
    def strength(self) -> int:
        """3 for hard down to 0 for none."""
        return {"hard": 3, "guarded": 2, "advisory": 1, "none": 0}[self.value]


def weakest(guarantees: Iterator[Guarantee]) -> Guarantee:
    """The weakest of at least one. Raises ValueError for none."""
    return min(guarantees, key=lambda guarantee: guarantee.strength)


@dataclass(frozen=True, slots=True)
class DeviceOffer:
    """One device (a GPU or a MIG device) offered under one resource name.

    device:      UUID of the device; the ids of its shares begin with it.
    gpu:         UUID of the GPU that it is, or is part of.
    index:       what ``deviceIDStrategy: index`` calls it: ``0`` or ``0:1``.
    gpu_index:   NVML index of the GPU.
    resource:    the name under which the kubelet knows it.
    strategy:    the GPU's; shared: how the device itself is shared (exclusive, time-slicing, mps).
    replicas:    shares into which the *device* is split, 1 for exclusive. Together with ``first`` and
                 ``count`` it says which of them this offering holds: all, save where MPS clients differ.
    memory_bytes: memory of one share.
    threads_percent: ceiling of compute of one share under MPS; None elsewhere.
    nodes:       device files as paths below the device root, ``/dev/nvidia0``.
    single:      a container may hold one share only (``failRequestsGreaterThanOne``).
    planned:     the device does not exist yet: a MIG layout that has still to be made.
    profile:     of the MIG device, None for a GPU.
    limits_in_env: the share is smaller than what the GPU's MPS daemon lets a client have; its own limits
                 stand in the container's environment.
    pipe:        where below its daemon's pipe directory the share's clients connect: a namespace of a named
                 server (MPS v3). Empty: at the directory itself.
    """

    device: str
    gpu: str
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
    planned: bool = False
    profile: str | None = None
    guard: bool = False
    limits_in_env: bool = False
    pipe: str = ""

    @property
    def share_ids(self) -> tuple[str, ...]:
        """The kubelet's device ids: the bare UUID for exclusive, else ``<uuid>::<n>``."""
        if self.shared is Strategy.EXCLUSIVE:
            return (self.device,)
        return tuple(str(ShareId(self.device, n)) for n in range(self.first, self.first + self.count))


GpuOffer = tuple[DeviceOffer, ...]
"""All that one GPU offers."""

NodeOffer = Mapping[str, GpuOffer]
"""GPU UUID to what it offers. A GPU that offers nothing (an empty MIG GPU) has an empty tuple."""


@dataclass(frozen=True, slots=True)
class Resource:
    """All that is offered under one name, ordered by GPU index, MIG index and share."""

    name: ResourceName
    offerings: tuple[DeviceOffer, ...]

    @property
    def count(self) -> int:
        """Number of shares."""
        return sum(offering.count for offering in self.offerings)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device in a ListAndWatch message to the kubelet. numa_node: None sends no topology."""

    id: str
    healthy: bool
    numa_node: int | None = None


def resources_of(offer: NodeOffer) -> dict[ResourceName, Resource]:
    """Group an offer by resource name; names in the order of the first GPU that has them."""
    rows: dict[ResourceName, list[DeviceOffer]] = {}
    offerings = (offering for gpu_offer in offer.values() for offering in gpu_offer)
    for offering in sorted(offerings, key=_node_order):
        rows.setdefault(offering.resource, []).append(offering)
    return {name: Resource(name, tuple(offerings)) for name, offerings in rows.items()}


def _node_order(offering: DeviceOffer) -> tuple[int, int, int]:
    _, _, mig_index = offering.index.partition(":")
    return offering.gpu_index, int(mig_index or -1), offering.first

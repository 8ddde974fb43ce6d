"""Which resource a pod asks for on a node, and how much of it: the smallest share that holds it. Pure.

A trace says how much of a GPU a pod needs, and a manifest names a resource. So on each kind of node the pod
asks for the resource whose share is the smallest that is large enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from math import ceil

from partage.claims.decide.book import ClaimBook
from partage.claims.decide.classes import chart_classes
from partage.claims.decide.nearest import nearest
from partage.claims.decide.scheduling import PodClaim, Unplaced, place
from partage.model.ids import GPU_CLASS, GpuUuid, ResourceName, ShareId
from partage.model.share import DeviceOffer, DeviceRow, Resource, plugin_resources, resources_of
from partage.plan.offer.desired import DesiredState
from partage.plan.placement.mix import WHOLE_MILLI
from partage.plan.serve.preferred_allocation import KubeletChoice
from partage.values import Frozen
from partage.whatif.decide.pods import NodeKind, PodWants


class OfferedResource:
    """One resource of a node, all its devices healthy.

    ids: of its shares, in the order of the list. rows: as the agent lists them. milli_of: how much of a GPU
    each share is, in thousandths of its memory. gpu_bytes_of: the memory of the GPU of each share. parts:
    devices that are made of its GPUs on demand, which are no shares beside them.
    """

    def __init__(self, resource: Resource, desired: DesiredState, parts: Iterable[DeviceOffer] = ()) -> None:
        inventory = desired.inventory
        self.resource = resource
        self.name = resource.name
        self.ids: tuple[ShareId, ...] = tuple(
            id_ for offering in resource.offerings for id_ in offering.share_ids
        )
        self.rows = tuple(DeviceRow(id_, healthy=True) for id_ in self.ids)
        self.choice = KubeletChoice(resource, inventory.links, desired.policy.options.allocation)
        memory = {gpu.uuid: gpu.memory_bytes for gpu in inventory}
        self.gpu_bytes_of: Mapping[ShareId, int] = {
            id_: memory[offering.gpu] for offering in resource.offerings for id_ in offering.share_ids
        }
        self.milli_of: Mapping[ShareId, float] = {
            id_: share_milli(offering, memory[offering.gpu])
            for offering in (*resource.offerings, *parts)
            for id_ in offering.share_ids
        }


class NodeOffer:
    """Everything that a node of one kind offers. capacity_milli: of all its GPUs. resources: by name. book:
    what it publishes for claims; of_claims: by class, of which claims hold shares.
    """

    def __init__(self, desired: DesiredState, book: ClaimBook | None = None) -> None:
        self.desired = desired
        self.book = book or ClaimBook()
        self.resources: Mapping[ResourceName, OfferedResource] = {
            name: OfferedResource(resource, desired)
            for name, resource in plugin_resources(desired.offer).items()
        }
        served = self.book.served
        parts = [row for row in served.rows.values() if row.planned] if served else []
        whole = {row.gpu: (row,) for row in parts if row.profile is None}
        self.of_claims: Mapping[ResourceName, OfferedResource] = {
            name: OfferedResource(resource, desired, parts if name == GPU_CLASS else ())
            for name, resource in resources_of({**desired.offer, **whole}).items()
            if name not in self.resources
        }
        self.capacity_milli = WHOLE_MILLI * len(desired.inventory.gpus)


def share_milli(row: DeviceOffer, gpu_bytes: int) -> float:
    """How much of its GPU one share is, in thousandths of the memory; all units of a device are all of it."""
    if row.profile is None and not row.traits.in_shares:
        return float(WHOLE_MILLI)
    if row.profile is None and (row.by_memory or not row.traits.limits_memory):
        return WHOLE_MILLI / row.replicas
    return WHOLE_MILLI * row.memory_bytes / gpu_bytes if gpu_bytes else 0.0


SLACK_MILLI = 10
"""A share may be so much smaller than what is asked for, in thousandths of a GPU: MIG devices have a little
less memory than their part, because the driver keeps some (half of an H100 is 0.496 of its memory)."""

Demand = tuple[tuple[ResourceName, int], ...]
"""Resource names and amounts, of one container. Empty: no GPU."""


class Cause(StrEnum):
    """Why a pod fits on no node, the nearest to fitting last."""

    MODEL = "model"
    RESOURCE = "resource"
    SHARE = "share"
    GPUS = "gpus"
    MEMORY = "memory"
    CPU = "cpu"
    CLAIM = "claim"
    REFUSED = "refused"


class Unmet(Frozen):
    """Why a kind of node can never take a pod.

    most: how much it could have: thousandths of a GPU (share), bytes (share, by memory; memory), GPUs, or
    thousandths of a CPU. text: what the agent says.
    """

    cause: Cause
    most: int = 0
    text: str = ""


class _Choice(Frozen):
    """A resource that could serve. given_milli: how much of a GPU the pod would hold."""

    given_milli: float
    name: ResourceName
    count: int


def demand_on(wants: PodWants, kind: NodeKind, offer: NodeOffer) -> Demand | Unmet:
    """What the pod asks for on a node of that kind."""
    if not wants.asks_for_gpus:
        return ()
    if wants.models and not wants.models & kind.models:
        return Unmet(Cause.MODEL)
    if wants.claims:
        return _claimed(wants, offer)
    if wants.requests:
        missing = [name for name, _ in wants.requests if name not in offer.resources]
        return Unmet(Cause.RESOURCE, text=", ".join(missing)) if missing else wants.requests
    memory = {gpu.uuid: gpu.memory_bytes for gpu in kind.inventory}
    found = [_choice(wants, offered, memory) for offered in offer.resources.values()]
    choices = [choice for choice in found if isinstance(choice, _Choice)]
    if choices:
        best = min(choices, key=lambda choice: (choice.given_milli, choice.count))
        return ((best.name, best.count),)
    unmet = [choice for choice in found if isinstance(choice, Unmet)]
    if not unmet:
        return Unmet(Cause.SHARE)
    return max(unmet, key=nearness)


def _claimed(wants: PodWants, offer: NodeOffer) -> Demand | Unmet:
    """Which shares claims get is chosen device by device: no number of a resource says it. All names of which
    they may be are here, with 0.
    """
    claims = [PodClaim(spec.title, spec) for spec in wants.claims]
    found = place(claims, offer.book, chart_classes(offer.book.names))
    if isinstance(found, Unplaced):
        unknown = f"there is no DeviceClass {found.classes[0]}" if found.classes else nearest(found)
        return Unmet(Cause.CLAIM, text=f"request {found.request.name}: {unknown}")
    return tuple((name, 0) for name in offer.of_claims)


def nearness(unmet: Unmet) -> tuple[int, int]:
    """The greatest one is the nearest to fitting."""
    return list(Cause).index(unmet.cause), unmet.most


def _choice(wants: PodWants, offered: OfferedResource, memory: Mapping[GpuUuid, int]) -> _Choice | Unmet:
    """How this resource could serve, or why not. memory: bytes of each GPU."""
    rows = offered.resource.offerings
    if any(row.by_memory for row in rows):
        return _units(wants, offered)
    # Which of unlike shares under one name the pod gets is not for it to say: the smallest has to do.
    smallest = min(rows, key=lambda row: (share_milli(row, memory[row.gpu]), row.memory_bytes))
    milli = share_milli(smallest, memory[smallest.gpu])
    size = smallest.memory_bytes if wants.gpu_memory_bytes else milli
    needed: float = wants.gpu_memory_bytes or wants.gpu_milli - SLACK_MILLI
    if size >= needed:
        most = _most_together(rows, offered)
        if wants.gpus <= most:
            return _Choice(milli * wants.gpus, offered.name, wants.gpus)
        return Unmet(Cause.GPUS, most)
    together = min((row.count for row in rows), default=0) if _adds_up(smallest) and wants.gpus == 1 else 1
    count = ceil(needed / size) if size else together + 1
    if count <= together:
        return _Choice(milli * count, offered.name, count)
    return Unmet(Cause.SHARE, int(size * together))


def _units(wants: PodWants, offered: OfferedResource) -> _Choice | Unmet:
    """Units of memory: as many as hold it, all of one device."""
    rows = offered.resource.offerings
    largest = max(rows, key=lambda row: row.count)
    if wants.gpus > 1:
        return Unmet(Cause.GPUS, 1)
    if wants.gpu_memory_bytes:
        count, most = -(-wants.gpu_memory_bytes // largest.memory_bytes), largest.count * largest.memory_bytes
    else:  # of the largest device, so that it is enough on every one
        count, most = -(-wants.gpu_milli * largest.replicas // 1000), 1000
    if count > largest.count:
        return Unmet(Cause.SHARE, most)
    return _Choice(sum(offered.milli_of[id_] for id_ in largest.share_ids[:count]), offered.name, count)


def _adds_up(row: DeviceOffer) -> bool:
    """Whether several shares of one device are more of that device: MPS, where a container may have them."""
    return row.traits.through_daemon and not row.single


def _most_together(rows: tuple[DeviceOffer, ...], offered: OfferedResource) -> int:
    """How many shares one container can have, of different GPUs."""
    if not any(row.traits.in_shares for row in rows):
        return len(offered.ids)
    if any(row.single or row.traits.through_daemon for row in rows):
        return 1
    return len({row.gpu for row in rows})

"""What the nodes of one kind offer under a policy, and what answers for it: the agent's own functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from partage.claims.decide.book import ClaimBook
from partage.model.ids import GPU_CLASS, ResourceName, ShareId
from partage.model.share import DeviceOffer, DeviceRow, Resource, plugin_resources, resources_of
from partage.plan.offer.desired import DesiredState
from partage.plan.placement.mix import WHOLE_MILLI
from partage.plan.serve.preferred_allocation import KubeletChoice


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

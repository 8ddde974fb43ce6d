"""A node with the MIG devices that its policy plans for claims, as if they were made."""

from __future__ import annotations

from partage.edges.files.catalogue import geometry_of
from partage.model.gpu import Inventory
from partage.model.policy import Policy
from partage.model.share import NodeOffer
from partage.model.strategy import Via
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.offer.guarantees import promised


def with_made_devices(policy: Policy, inventory: Inventory, offer: NodeOffer) -> tuple[NodeOffer, Inventory]:
    """Offer and GPUs: what is not there is not published for claims, so it is made. The same where claims ask
    for no MIG device that is still to be made.
    """
    if not _claims_wait(offer):
        return offer, inventory
    made = made_desired(policy, resolve(policy, inventory, geometry_of))
    return promised(made.offer, made.watch_of, made.inventory, made.settings), made.inventory


def made_desired(policy: Policy, desired: DesiredState) -> DesiredState:
    """What is wanted, on a node on which it has been made; the same where claims wait for no MIG device."""
    if not _claims_wait(desired.offer):
        return desired
    from partage.sim.node.planned_layouts import with_planned_layouts

    return resolve(policy, with_planned_layouts(desired, geometry_of), geometry_of)


def _claims_wait(offer: NodeOffer) -> bool:
    return any(row.planned and row.via is Via.CLAIMS for rows in offer.values() for row in rows)

"""From an assignment to what is offered: shares, their memory, their guarantees."""

from __future__ import annotations

from partage.model.gpu import Inventory
from partage.model.policy import Policy
from partage.model.share import Offer
from partage.plan.assign import Assignment


def advertise(assignment: Assignment, inventory: Inventory, policy: Policy) -> Offer:
    """What every GPU that answers offers, planned MIG devices included (``Offering.planned``).

    Raises Unsatisfiable with all problems: more MPS clients than architecture and driver allow, clients that
    want more memory or threads than the GPU has, more ids in one resource than one kubelet message holds.
    """
    raise NotImplementedError

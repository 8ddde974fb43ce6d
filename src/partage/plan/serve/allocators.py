"""Which allocator answers GetPreferredAllocation for a resource. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from partage.model.gpu import Link
from partage.model.policy import AllocationPolicy
from partage.model.share import Resource
from partage.plan.serve.preferred_allocation import PreferredAllocator
from partage.plan.serve.unit_allocation import UnitAllocator


def allocator_of(
    resource: Resource, links: Sequence[Link], policy: AllocationPolicy
) -> PreferredAllocator | UnitAllocator:
    """Units of memory come from one device; all other shares are chosen by links and policy."""
    if any(one.by_memory for one in resource.offerings):
        return UnitAllocator(resource)
    return PreferredAllocator(resource, links, policy)

"""Which shares of a resource a container gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from partage.model.gpu import Link
from partage.model.ids import ShareId
from partage.model.policy import AllocationPolicy
from partage.model.share import Resource
from partage.plan.serve.allocate_response import check_together
from partage.plan.serve.preferred_allocation import PreferredAllocator
from partage.plan.serve.unit_allocation import UnitAllocator


def allocator_of(
    resource: Resource, links: Sequence[Link], policy: AllocationPolicy
) -> PreferredAllocator | UnitAllocator:
    """Units of memory come from one device; all other shares are chosen by links and policy."""
    if any(row.by_memory for row in resource.offerings):
        return UnitAllocator(resource)
    return PreferredAllocator(resource, links, policy)


class KubeletChoice:
    """What the kubelet does for a container and one resource, where no kubelet is asked: it takes what its
    plugin prefers, and asks Allocate (pkg/kubelet/cm/devicemanager). Both are the agent's functions.
    """

    def __init__(self, resource: Resource, links: Sequence[Link], policy: AllocationPolicy) -> None:
        self._name = resource.name
        self._prefer = allocator_of(resource, links, policy).prefer
        self._row_of = {share: row for row in resource.offerings for share in row.share_ids}

    def shares(self, free: Sequence[ShareId], count: int, reusable: Sequence[ShareId] = ()) -> list[ShareId]:
        """So many of the free ones. reusable: what init containers of the pod had; these come first.

        Raises AllocationRefused with the agent's words.
        """
        again = reusable[:count]
        ids = self._prefer([*free, *again], again, count)
        check_together(self._name, [self._row_of[share] for share in ids])
        return ids

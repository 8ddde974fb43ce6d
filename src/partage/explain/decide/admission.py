"""Tries a pod on a node, with the functions that answer the kubelet: what they refuse is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partage.explain.decide.node import NodeView, free_shares
from partage.explain.decide.pod import ContainerNeeds, PodNeeds
from partage.model.allocation import AllocationRefused
from partage.model.gpu import Link
from partage.model.ids import ResourceName, ShareId
from partage.model.policy import AllocationPolicy
from partage.model.share import DeviceOffer, NodeOffer, Resource, resources_of
from partage.plan.serve.allocate_response import check_together
from partage.plan.serve.allocators import allocator_of
from partage.values import Frozen


class PodRefusal(Frozen):
    """What a pod cannot get. container: None: all of them together. offered: the node offers the resource.
    at_node: the scheduler would send the pod, and the kubelet would refuse it.
    """

    container: ContainerNeeds | None
    resource: ResourceName
    amount: int
    offered: bool = True
    at_node: bool = False


class Admission:
    """The device plugins of one offer, and what the kubelet asks of them for a pod."""

    def __init__(self, offer: NodeOffer, links: Sequence[Link], policy: AllocationPolicy) -> None:
        self.resources = resources_of(offer)
        self._plugins = {name: _Plugin(one, links, policy) for name, one in self.resources.items()}

    def refusal(
        self, pod: PodNeeds, free: Mapping[ResourceName, Sequence[ShareId]], elsewhere: Mapping[str, object]
    ) -> PodRefusal | None:
        """Why the pod cannot have its shares of these free ones; None if it can.

        Containers in their order; a main container gets again what the ordinary init containers had, as from
        the kubelet. elsewhere: resources that are counted, and not offered here.
        """
        left = {name: list(ids) for name, ids in free.items()}
        reusable: dict[ResourceName, list[ShareId]] = {}
        totals = pod.totals
        for container, text, amount in pod.asks:
            name = ResourceName(text)
            plugin = self._plugins.get(name)
            if plugin is None:
                if text in elsewhere:
                    continue
                return PodRefusal(container, name, amount, offered=False)
            enough = totals.get(text, 0) <= len(free.get(name, ()))
            chosen = plugin.chosen(left.get(name, []), reusable.get(name, []), amount)
            if chosen is None:
                return PodRefusal(container, name, amount, at_node=enough)
            taken = set(chosen)
            left[name] = [share for share in left.get(name, []) if share not in taken]
            kept = [share for share in reusable.get(name, []) if share not in taken]
            ends = container.init and not container.sidecar
            reusable[name] = [*kept, *chosen] if ends else kept
        for text, amount in totals.items():
            name = ResourceName(text)
            if name in self._plugins and text in pod.gpu_resources and amount > len(free.get(name, ())):
                return PodRefusal(None, name, amount)
        return None


class _Plugin:
    """The plugin of one resource."""

    def __init__(self, resource: Resource, links: Sequence[Link], policy: AllocationPolicy) -> None:
        self._name = resource.name
        self._allocator = allocator_of(resource, links, policy)
        self._row_of: dict[ShareId, DeviceOffer] = {
            share: row for row in resource.offerings for share in row.share_ids
        }

    def chosen(
        self, free: Sequence[ShareId], reusable: Sequence[ShareId], amount: int
    ) -> list[ShareId] | None:
        """The shares of one container; None where it cannot have so many."""
        again = list(reusable)[:amount]
        try:
            ids = self._allocator.prefer([*free, *again], again, amount)
            check_together(self._name, [self._row_of[share] for share in ids])
        except AllocationRefused:
            return None
        return ids


class Trials:
    """Tries pods on nodes. What is prepared for an offer is kept."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[NodeOffer, Admission]] = {}

    def refusal(self, pod: PodNeeds, node: NodeView) -> PodRefusal | None:
        """Why the pod cannot have its shares on the node now; None if it can."""
        return self.admission(node).refusal(pod, free_shares(node), node.counted)

    def fits(self, pod: PodNeeds, node: NodeView) -> bool:
        """Whether it can."""
        return self.refusal(pod, node) is None

    def admission(self, node: NodeView) -> Admission:
        """What answers for the node's offer."""
        known = self._known.get(id(node.offer))
        if known is None:
            known = node.offer, Admission(node.offer, node.links, node.allocation)
            self._known[id(node.offer)] = known
        return known[1]

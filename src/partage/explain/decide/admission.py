"""Tries a pod on a node, with the functions that answer the kubelet: what they refuse is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partage.explain.decide.node import NodeView, free_shares
from partage.explain.decide.pod import PodNeeds
from partage.model.gpu import Link
from partage.model.ids import ResourceName, ShareId
from partage.model.pod import Container
from partage.model.policy import AllocationPolicy
from partage.model.share import AllocationRefused, NodeOffer, plugin_resources
from partage.plan.serve.preferred_allocation import KubeletChoice
from partage.values import Frozen


class PodRefusal(Frozen):
    """What a pod cannot get. container: None: all of them together. offered: the node offers the resource.
    at_node: the scheduler would send the pod, and the kubelet would refuse it.
    """

    container: Container | None
    resource: ResourceName
    amount: int
    offered: bool = True
    at_node: bool = False


class Admission:
    """What a pod would get of one offer, container by container."""

    def __init__(self, offer: NodeOffer, links: Sequence[Link], policy: AllocationPolicy) -> None:
        self.resources = plugin_resources(offer)
        self._choices = {
            name: KubeletChoice(resource, links, policy) for name, resource in self.resources.items()
        }

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
            choice = self._choices.get(name)
            if choice is None:
                if text in elsewhere:
                    continue
                return PodRefusal(container, name, amount, offered=False)
            enough = totals.get(text, 0) <= len(free.get(name, ()))
            try:
                chosen = choice.shares(left.get(name, []), amount, reusable.get(name, []))
            except AllocationRefused:
                return PodRefusal(container, name, amount, at_node=enough)
            taken = set(chosen)
            left[name] = [share for share in left.get(name, []) if share not in taken]
            kept = [share for share in reusable.get(name, []) if share not in taken]
            ends = container.kind == "init"
            reusable[name] = [*kept, *chosen] if ends else kept
        for text, amount in totals.items():
            name = ResourceName(text)
            if name in self._choices and text in pod.gpu_resources and amount > len(free.get(name, ())):
                return PodRefusal(None, name, amount)
        return None


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

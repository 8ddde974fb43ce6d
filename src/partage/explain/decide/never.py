"""Tries a pod on a node, with the functions that answer the kubelet: what they refuse is refused here. And
what this node could not give the pod if nobody else were on it, and what could be asked for instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from msgspec.structs import replace

from partage.explain.decide.amounts import Unit
from partage.explain.decide.apply import Applied, emptied
from partage.explain.decide.changes import AskFewer, AskOther, Change, NodeFinding, RaiseReplicas
from partage.explain.decide.pod_and_node import NodeView, PodNeeds, free_shares
from partage.explain.decide.reasons import (
    LargerThanGpu,
    MoreThanNode,
    NodeReason,
    NotOffered,
    NotTogether,
    OneShareOnly,
    PolicyNotInForce,
)
from partage.model.driver_limit import SMALLEST_USABLE_BYTES
from partage.model.gpu import Link
from partage.model.ids import VENDOR, ResourceName, ShareId
from partage.model.pod import Container
from partage.model.policy import AllocationPolicy, Exclusive, Policy
from partage.model.share import AllocationRefused, NodeOffer, Resource, plugin_resources
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


MOST_OPTIONS = 3
_MOST_REPLICAS = 64
"""So many more replicas are tried."""

_PROFILE = re.compile(r"mig-\d+g\.(\d+)gb")


def never(pod: PodNeeds, node: NodeView, trials: Trials, apply: Applied) -> NodeFinding | None:
    """The reason; None if the node could, as it is offered now or will be."""
    alone = emptied(node)
    refusal = trials.refusal(pod, alone)
    if refusal is None:
        return None
    if node.wanted is not None and trials.fits(pod, _as_wanted(alone)):
        return None
    options = tuple((option,) for option in _options(pod, alone, refusal, trials, apply))
    return NodeFinding(_reason(pod, node, refusal, trials.admission(alone).resources), options)


def _as_wanted(alone: NodeView) -> NodeView:
    return replace(alone, offer=alone.wanted or alone.offer)


def _reason(
    pod: PodNeeds, node: NodeView, refusal: PodRefusal, resources: Mapping[ResourceName, Resource]
) -> NodeReason:
    name, asked = refusal.resource, refusal.amount
    resource = resources.get(name)
    if resource is None:
        if node.policy_trouble:
            return PolicyNotInForce(name, node.policy_trouble)
        return NotOffered(name, node.names)
    unit, largest = unit_of(resource), largest_device(resource)
    if refusal.container is not None and asked > 1:
        words = refusal.container.words
        if all(row.single for row in resource.offerings):
            return OneShareOnly(name, asked, words)
        if takes_one_device(resource) and asked > largest:
            return LargerThanGpu(unit, asked, largest, words)
    total = pod.totals.get(name, asked)
    if refusal.container is not None and total <= resource.count:
        return NotTogether(unit, asked, refusal.container.words)
    return MoreThanNode(unit, total, resource.count)


def unit_of(resource: Resource) -> Unit:
    """In what amounts of it are said."""
    return Unit(resource.name, next((row.memory_bytes for row in resource.offerings if row.by_memory), 0))


def takes_one_device(resource: Resource) -> bool:
    """Whether all shares of a container have to be of one device."""
    return any(row.by_memory or row.threads_percent is not None for row in resource.offerings)


def largest_device(resource: Resource) -> int:
    """Shares of the device with most of them."""
    counts = Counter[str]()
    for row in resource.offerings:
        counts[row.device] += row.count
    return max(counts.values(), default=0)


# --- ways out ---------------------------------------------------------------------------------------


def _options(
    pod: PodNeeds, alone: NodeView, refusal: PodRefusal, trials: Trials, apply: Applied
) -> Iterator[Change]:
    """Those that have been tried on the empty node, and are enough there. Where none is, the first one that
    helps this container: others may have to ask for something else, too.
    """
    found, helps, raised = 0, None, set[str]()
    for change in _candidates(pod, alone, refusal, trials, apply):
        if isinstance(change, RaiseReplicas) and change.origin in raised:
            continue
        left = trials.refusal(*apply(change, pod, alone))
        if left is None:
            yield change
            found += 1
            raised |= {change.origin} if isinstance(change, RaiseReplicas) else set()
            if found == MOST_OPTIONS:
                return
        elif helps is None and left.container is not None and refusal.container is not None:
            later = left.container.words != refusal.container.words
            helps = change if later and not isinstance(change, RaiseReplicas) else None
    if not found and helps is not None:
        yield helps


def _candidates(
    pod: PodNeeds, alone: NodeView, refusal: PodRefusal, trials: Trials, apply: Applied
) -> Iterator[Change]:
    if refusal.offered:
        if (fewer := ask_fewer(pod, alone, refusal, trials, apply)) is not None:
            yield fewer
        yield from _more_replicas(alone, refusal.amount)
    yield from ask_other(alone, refusal, trials)


def ask_fewer(
    pod: PodNeeds, node: NodeView, refusal: PodRefusal, trials: Trials, apply: Applied
) -> AskFewer | None:
    """The most that the container could have on this node; None where even the least is too much. Of amounts
    of memory, first an init container that binds it to a GPU.
    """
    container, resource = refusal.container, trials.admission(node).resources.get(refusal.resource)
    if container is None or resource is None or refusal.amount < 2:
        return None
    unit = unit_of(resource)
    for other in pod.containers if unit.bytes else ():
        now = other.requests.get(refusal.resource, 0) if other.kind == "init" else 0
        without = AskFewer(other.words, unit, now, 0)
        if now and other != container and trials.fits(*apply(without, pod, node)):
            return without

    def asking(amount: int) -> AskFewer:
        return AskFewer(container.words, unit, refusal.amount, amount)

    def fits(amount: int) -> bool:
        return trials.fits(*apply(asking(amount), pod, node))

    low, high = 0, refusal.amount - 1  # so much fits; so much may fit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    if low == 0 or (unit.bytes and low * unit.bytes < SMALLEST_USABLE_BYTES):
        return None
    return asking(low)


def _more_replicas(node: NodeView, missing: int) -> Iterator[RaiseReplicas]:
    """Each entry of the policy with more shares, the fewest first."""
    for origin, now, source in _replicated(node.policy):
        for more in range(1, min(missing, _MOST_REPLICAS) + 1):
            yield RaiseReplicas(origin, source, now, now + more)


def _replicated(policy: Policy | None) -> Iterator[tuple[str, int, str]]:
    for entry in () if policy is None else policy.entries:
        sharing = entry.sharing
        if isinstance(sharing, Exclusive) or sharing.units is not None or sharing.replicas < 2:
            continue
        if getattr(sharing, "clients", ()):
            continue  # each of them has its own size
        yield entry.origin, sharing.replicas, policy.source if policy else ""


def ask_other(node: NodeView, refusal: PodRefusal, trials: Trials) -> Iterator[AskOther]:
    """Other names that the node offers, the nearest first."""
    if refusal.container is None:
        return
    resources = trials.admission(node).resources
    before = resources.get(refusal.resource)
    for name in nearest_names(refusal.resource, [name for name in node.names if name != refusal.resource]):
        other = resources.get(ResourceName(name))
        if refusal.amount > 1 and _whole(refusal.resource, before) and not _whole(name, other):
            continue  # several devices are for one large job: shares of one GPU do not stand for them
        amount = refusal.amount if other is None else _same_amount(refusal.amount, before, other)
        unit = Unit(name) if other is None else unit_of(other)
        yield AskOther(refusal.container.words, refusal.resource, refusal.amount, unit, amount)


def _whole(name: str, resource: Resource | None) -> bool:
    """Whether each of it is a device that nobody else has. None: it is not offered; its name says it."""
    if resource is None:
        return name == f"{VENDOR}/gpu"
    return all(row.count == 1 and not row.by_memory for row in resource.offerings)


def _same_amount(asked: int, before: Resource | None, other: Resource) -> int:
    """How many of another resource stand for so many. Of amounts of memory, one share's worth."""
    if (unit := unit_of(other).bytes) > 0:
        wanted = SMALLEST_USABLE_BYTES if before is None else before.offerings[0].memory_bytes
        return max(1, -(-wanted // unit))
    if before is not None and unit_of(before).bytes:
        return 1
    return 1 if all(row.single for row in other.offerings) else asked


def nearest_names(asked: str, offered: list[str]) -> list[str]:
    """The names that are most like it first. Of MIG profiles, those with enough memory come before smaller
    ones."""
    wanted = _profile_gb(asked)

    def rank(name: str) -> tuple[bool, float, str]:
        has = _profile_gb(name)
        too_small = wanted is not None and has is not None and has < wanted
        return too_small, -SequenceMatcher(None, asked, name).ratio(), name

    return sorted(offered, key=rank)


def _profile_gb(name: str) -> int | None:
    match = _PROFILE.search(name)
    return int(match[1]) if match else None

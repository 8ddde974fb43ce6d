"""Why a pod does not run on a node, and what would let it: one reason, and the smallest way out. Pure.

First the scheduler's side: whether it would send the pod to this node, whatever its GPUs have. Then the pod
is tried with the functions that answer the kubelet. If it is refused, the first cause is the reason,
and its smallest way out is carried out on values, and the pod is tried again: so the changes that are named
are enough, or it is said that they are not (docs/adr/0122).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from partage.claims.decide.scheduling import GivenDevice, Placed
from partage.explain.decide.amounts import Unit, fewest
from partage.explain.decide.apply import Applied, applied
from partage.explain.decide.changes import (
    AskFewer,
    Change,
    DropAffinity,
    DropNodeName,
    LabelNode,
    NodeFinding,
    RepairNode,
    Tolerate,
    UncordonNode,
    WaitForPods,
)
from partage.explain.decide.claim_reasons import NodeRefusesClaim
from partage.explain.decide.claims import claim_verdicts, claims_finding, given_on
from partage.explain.decide.gpus import GpuVerdict, gpu_verdicts
from partage.explain.decide.never import Trials, never
from partage.explain.decide.now import after, not_now
from partage.explain.decide.pod_and_node import NODE_STATE, Counted, NodeView, PodNeeds, with_claim_by_name
from partage.explain.decide.reasons import (
    CounterShort,
    MoreThanNode,
    NodeCordoned,
    NodeGivesNothing,
    NodeNotReady,
    NodeReason,
    Tainted,
    WrongNode,
)
from partage.kubernetes.decide.node_rules import KEEPS_AWAY, LabelRule, Term
from partage.model.ids import VENDOR
from partage.model.node_labels import DOMAIN
from partage.plan.offer.select import GeometryOf
from partage.values import Frozen

_UNSCHEDULABLE = f"{NODE_STATE}unschedulable"


def before_gpus(pod: PodNeeds, node: NodeView) -> NodeFinding | None:
    """What makes the GPUs of the node matter not at all."""
    return _wrong_node(pod, node) or _not_working(node)


def _wrong_node(pod: PodNeeds, node: NodeView) -> NodeFinding | None:
    if pod.node and pod.node != node.name:
        reason = WrongNode(f"the name {pod.node} (nodeName)", f"the name {node.name}")
        return NodeFinding(reason, ((DropNodeName(pod.node),),))
    for key, value in pod.selector.items():
        if _known(node, key) and node.labels.get(key) != value:
            change = LabelNode(node.name, key, value)
            return NodeFinding(WrongNode(f"the label {key}={value}", _has(node, key)), ((change,),))
    if pod.affinity is not None and not any(_term_holds(term, node) for term in pod.affinity):
        rule = _first_broken(pod.affinity, node)
        reason = WrongNode(f"{rule} (node affinity)", _has(node, rule.key) if rule else "not that")
        return NodeFinding(reason, ((DropAffinity(str(rule or "no term")),),))
    return None


def _known(node: NodeView, key: str) -> bool:
    """Whether it is known if the node has this label. Without a cluster only what Partage writes is known."""
    return node.all_labels or key in node.labels or _is_ours(key)


def _is_ours(key: str) -> bool:
    return key.startswith((f"{VENDOR}/gpu.", f"{VENDOR}/mig", f"{DOMAIN}/"))


def _has(node: NodeView, key: str) -> str:
    return f"{key}={node.labels[key]}" if key in node.labels else f"no label {key}"


def _term_holds(term: Term, node: NodeView) -> bool:
    return bool(term) and all(
        rule.holds(node.labels, node.name) or not (rule.of_field or _known(node, rule.key)) for rule in term
    )


def _first_broken(affinity: tuple[Term, ...], node: NodeView) -> LabelRule | None:
    """Of the term of which most rules hold."""
    broken = [[rule for rule in term if not rule.holds(node.labels, node.name)] for term in affinity]
    nearest = min((rules for rules in broken if rules), key=len, default=[])
    return nearest[0] if nearest else None


def assumed_labels(pod: PodNeeds, node: NodeView) -> tuple[str, ...]:
    """What the pod wants of a node's labels, and nobody here can know."""
    rules = [f"{key}={value}" for key, value in pod.selector.items() if not _known(node, key)]
    for term in pod.affinity or ():
        rules += [str(rule) for rule in term if not rule.of_field and not _known(node, rule.key)]
    return tuple(dict.fromkeys(rules))


def _not_working(node: NodeView) -> NodeFinding | None:
    if node.not_ready:
        repair = RepairNode(f"repair the node: kubectl describe node {node.name}")
        return NodeFinding(NodeNotReady(node.not_ready), ((repair,),))
    if node.trouble:
        repair = RepairNode(node.hint or "repair it: partage show on the node says more")
        return NodeFinding(NodeGivesNothing(node.trouble), ((repair,),))
    return None


def after_offer(pod: PodNeeds, node: NodeView) -> NodeFinding | None:
    """What keeps new pods off a node whose GPUs would do."""
    if node.unschedulable and not _tolerates(pod, _UNSCHEDULABLE, "", "NoSchedule"):
        return NodeFinding(NodeCordoned(), ((UncordonNode(node.name),),))
    for taint in node.taints:
        if taint.effect not in KEEPS_AWAY or taint.key == _UNSCHEDULABLE:
            continue
        if not _tolerates(pod, taint.key, taint.value, taint.effect):
            return NodeFinding(Tainted(taint), ((Tolerate(taint.key, taint.value, taint.effect),),))
    return None


def _tolerates(pod: PodNeeds, key: str, value: str, effect: str) -> bool:
    return any(toleration.tolerates(key, value, effect) for toleration in pod.tolerations)


# --- what the scheduler counts ------------------------------------------------------------------------


def counted(pod: PodNeeds, node: NodeView) -> NodeFinding | None:
    """The first resource of which the scheduler counts too little left. GPUs first."""
    totals = {**pod.totals, "pods": 1}
    ordered = sorted(totals.items(), key=lambda pair: pair[0] not in pod.gpu_resources)
    for name, asked in ordered:
        there = node.counted.get(name, _nothing(name, node))
        if there is not None and asked > there.free:
            options = tuple((change,) for change in _ways(pod, node, name, asked))
            if asked > there.total:
                return NodeFinding(MoreThanNode(Unit(name), asked, there.total), options)
            return NodeFinding(CounterShort(Unit(name), asked, there.free), options)
    return None


def _nothing(name: str, node: NodeView) -> Counted | None:
    """Of an extended resource that a Node does not have, the scheduler counts nothing."""
    return Counted(0) if node.in_cluster and "/" in name else None


def _ways(pod: PodNeeds, node: NodeView, name: str, asked: int) -> Iterator[Change]:
    there = node.counted.get(name, Counted(0))
    if asked <= there.total and (pods := fewest(dict(there.users), asked - there.free)):
        yield WaitForPods(pods)
    most = there.free if asked <= there.total else there.total
    largest = max(
        (container for container in pod.containers if container.requests.get(name)),
        key=lambda container: container.requests[name],
        default=None,
    )
    if largest is not None:
        then = largest.requests[name] - (asked - most)
        if then > 0:
            yield AskFewer(largest.words, Unit(name), largest.requests[name], then)


_Find = Callable[[PodNeeds, NodeView], NodeFinding | None]

_MOST_ROUNDS = 12
"""Things in the way of one pod on one node."""


class NodeVerdict(Frozen):
    """A pod on a node.

    reason: what is in the way first; None: it fits. changes: what to do, in this order; enough: after all of
    it the pod fits. others: other ways out of the first reason. more: what is in the way besides, in the
    order of ``changes``. at_node: the scheduler would send the pod, and the kubelet would refuse it.
    assumed: labels that the pod wants, and of which nothing is known. gives: devices for the pod's claims.
    """

    node: str
    reason: NodeReason | None
    changes: tuple[Change, ...] = ()
    enough: bool = True
    others: tuple[tuple[Change, ...], ...] = ()
    more: tuple[NodeReason, ...] = ()
    at_node: bool = False
    assumed: tuple[str, ...] = ()
    gpus: tuple[GpuVerdict, ...] = ()
    gives: tuple[GivenDevice, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether nothing is in the way."""
        return self.reason is None


def explain_pod(
    pod: PodNeeds, node: NodeView, geometry_of: GeometryOf, trials: Trials | None = None
) -> NodeVerdict:
    """The pod on the node. trials: kept between nodes that share an offer."""
    trials, pod = trials or Trials(), with_claim_by_name(pod, node)
    apply: Applied = partial(applied, geometry_of=geometry_of)
    assumed, gpus = assumed_labels(pod, node), gpu_verdicts(pod, node)
    gpus = claim_verdicts(pod, node, gpus, geometry_of) if pod.claims else gpus
    find = partial(first_finding, trials=trials, apply=apply, geometry_of=geometry_of)
    first = find(pod, node)
    if first is None:  # the pod has room: nobody has to end, and nothing to be repaired for it
        unasked = tuple(replace(gpu, change=None) for gpu in gpus)
        given = given_on(pod, node, geometry_of) if pod.claims else None
        gives = given.given if isinstance(given, Placed) else ()
        return NodeVerdict(node.name, None, assumed=assumed, gpus=unasked, gives=gives)
    changes, more, enough = _way_out(first, pod, node, apply, find)
    refusal = None if node.trouble or node.not_ready else trials.refusal(pod, node)
    return NodeVerdict(
        node=node.name,
        reason=first.reason,
        changes=changes,
        enough=enough,
        others=first.options[1:],
        more=more,
        at_node=isinstance(first.reason, NodeRefusesClaim) or (refusal is not None and refusal.at_node),
        assumed=assumed,
        gpus=gpus,
    )


def first_finding(
    pod: PodNeeds, node: NodeView, trials: Trials, apply: Applied, geometry_of: GeometryOf
) -> NodeFinding | None:
    """What is in the way first. None: nothing.

    The cause before what follows from it: a node that is not for this pod, or does not work; what it could
    never give; what keeps pods off it; what it cannot give now; what the scheduler counts.
    """
    return (
        before_gpus(pod, node)
        or never(pod, node, trials, apply)
        or after_offer(pod, node)
        or not_now(pod, node, trials, apply)
        or claims_finding(pod, node, apply, geometry_of)
        or counted(pod, node)
    )


def _way_out(
    first: NodeFinding, pod: PodNeeds, node: NodeView, apply: Applied, find: _Find
) -> tuple[tuple[Change, ...], tuple[NodeReason, ...], bool]:
    """All changes that are needed, what else is in the way, and whether the pod fits afterwards."""
    changes: list[Change] = []
    reasons: list[NodeReason] = []
    finding: NodeFinding | None = first
    for _ in range(_MOST_ROUNDS):
        if finding is None or not finding.options:
            break
        way = finding.options[0]
        changes += way
        pod, node = after(way, pod, node, apply)
        finding = find(pod, node)
        if finding is not None:
            reasons.append(finding.reason)
    return tuple(dict.fromkeys(changes)), tuple(dict.fromkeys(reasons)), finding is None

"""The scheduler's side: whether it would send the pod to this node, whatever its GPUs have."""

from __future__ import annotations

from collections.abc import Iterator

from partage.explain.decide.amounts import Unit
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
from partage.explain.decide.fewest import fewest
from partage.explain.decide.node import NODE_STATE, Counted, NodeView
from partage.explain.decide.pod import PodNeeds
from partage.explain.decide.reasons import (
    CounterShort,
    MoreThanNode,
    NodeCordoned,
    NodeGivesNothing,
    NodeNotReady,
    Tainted,
    WrongNode,
)
from partage.kubernetes.decide.node_rules import KEEPS_AWAY, LabelRule, Term
from partage.model.ids import VENDOR
from partage.model.node_labels import DOMAIN

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
            reason = Tainted(taint.key, taint.value, taint.effect, taint.why)
            return NodeFinding(reason, ((Tolerate(taint.key, taint.value, taint.effect),),))
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

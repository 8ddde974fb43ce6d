"""Why a pod does not run on a node, and what would let it: one reason, and the smallest way out. Pure.

The pod is tried with the functions that answer the kubelet. If it is refused, the first cause is the reason,
and its smallest way out is carried out on values, and the pod is tried again: so the changes that are named
are enough, or it is said that they are not (docs/adr/0122).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from partage.claims.decide.scheduling import GivenDevice, Placed
from partage.explain.decide.admission import Trials
from partage.explain.decide.apply import Applied, applied
from partage.explain.decide.by_name import with_claim_by_name
from partage.explain.decide.changes import Change, NodeFinding
from partage.explain.decide.claim_gpus import claim_verdicts
from partage.explain.decide.claim_reasons import NodeRefusesClaim
from partage.explain.decide.claims import claims_finding, given_on
from partage.explain.decide.gpus import GpuVerdict, gpu_verdicts
from partage.explain.decide.never import never
from partage.explain.decide.node import NodeView
from partage.explain.decide.now import after, not_now
from partage.explain.decide.placing import after_offer, assumed_labels, before_gpus, counted
from partage.explain.decide.pod import PodNeeds
from partage.explain.decide.reasons import NodeReason
from partage.plan.offer.select import GeometryOf
from partage.values import Frozen

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

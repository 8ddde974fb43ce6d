"""What this node cannot give the pod now, and whose end or what act would let it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from partage.explain.decide.apply import Applied
from partage.explain.decide.changes import Change, NodeFinding, RepairGpu, Uncordon, WaitForGpu, WaitForPods
from partage.explain.decide.gpus import gpu_verdicts
from partage.explain.decide.never import PodRefusal, Trials, ask_fewer, ask_other, takes_one_device, unit_of
from partage.explain.decide.pod_and_node import (
    Changing,
    Cordoned,
    GpuView,
    NodeView,
    Obstacle,
    PodNeeds,
    Unhealthy,
    devices_of_gpu,
    free_shares,
    holder_of,
)
from partage.explain.decide.reasons import (
    AllHeld,
    GpuChanging,
    GpuCordoned,
    GpuUnhealthy,
    NodeReason,
    NotOffered,
)
from partage.model.ids import GpuUuid, ResourceName, device_of
from partage.plan.reconcile.node_plan import Phase

_SOON = (Phase.WITHDRAWING, Phase.READY, Phase.CHANGING, Phase.VERIFYING)
"""Phases that end by themselves within minutes."""

_Enough = Callable[[Sequence[Change]], bool]

_MOST_SINGLE = 128
"""Pods that are tried one by one."""


def not_now(pod: PodNeeds, node: NodeView, trials: Trials, apply: Applied) -> NodeFinding | None:
    """The reason; None if the pod fits."""
    refusal = trials.refusal(pod, node)
    if refusal is None:
        return None

    def enough(changes: Sequence[Change]) -> bool:
        return trials.fits(*after(changes, pod, node, apply))

    # Pods that are enough on one GPU are known without trying each pod of the node.
    near = [verdict.change for verdict in gpu_verdicts(pod, node) if isinstance(verdict.change, WaitForPods)]
    least = {who: place for place, who in enumerate(holders(pod, node))}
    near.sort(key=lambda change: (len(change.pods), max(map(least.__getitem__, change.pods))))
    quick = list(_ends(pod, node, near))
    ways: list[tuple[Change, ...]] = [
        *_of_each_kind([(candidate,) for candidate in quick if enough([candidate])])
    ]
    if not ways:
        ends = list(_ends(pod, node, [WaitForPods((who,)) for who in list(least)[:_MOST_SINGLE]]))
        ways = [*_of_each_kind([(end,) for end in ends if enough([end])])]
        if not ways and enough(ends):
            ways = [_fewest(ends, enough)]
    fewer = ask_fewer(pod, node, refusal, trials, apply)
    if fewer is not None:
        ways.append((fewer,))
    for other in ask_other(node, refusal, trials):
        if trials.fits(*apply(other, pod, node)):
            ways.append((other,))
            break
    first = ways[0][0] if ways else None
    return NodeFinding(_reason(pod, node, refusal, first, trials), tuple(ways))


def after(
    changes: Sequence[Change], pod: PodNeeds, node: NodeView, apply: Applied
) -> tuple[PodNeeds, NodeView]:
    """Pod and node after all of these."""
    for change in changes:
        pod, node = apply(change, pod, node)
    return pod, node


def _of_each_kind(ways: Sequence[tuple[Change, ...]]) -> Iterator[tuple[Change, ...]]:
    """The first of each kind."""
    seen: set[type] = set()
    for way in ways:
        if type(way[0]) not in seen:
            seen.add(type(way[0]))
            yield way


def _fewest(ends: Sequence[Change], enough: _Enough) -> tuple[Change, ...]:
    """Some that are enough together, and of which none can be left out: the last ones are left out first."""
    kept = list(ends)
    for end in reversed(ends):
        without = [other for other in kept if other is not end]
        if enough(without):
            kept = without
    return tuple(_joined(kept))


def _joined(changes: Sequence[Change]) -> Iterator[Change]:
    """Pods that have to end are one change."""
    pods = tuple(pod for change in changes if isinstance(change, WaitForPods) for pod in change.pods)
    said = False
    for change in changes:
        if not isinstance(change, WaitForPods):
            yield change
        elif not said:
            said = True
            yield WaitForPods(pods)


# --- what can end -------------------------------------------------------------------------------------


def _ends(pod: PodNeeds, node: NodeView, pods: Sequence[WaitForPods]) -> Iterator[Change]:
    """What may end on the node, the least first. pods: as many ways for pods to end."""
    concerned = [gpu for gpu in node.gpus if _concerns(pod, node, gpu.uuid)]
    changing = [(gpu, change) for gpu in concerned for change in _of_kind(node, gpu, Changing)]
    yield from (_wait_for(gpu, one) for gpu, one in changing if one.phase in _SOON)
    for gpu in concerned:
        if any(_of_kind(node, gpu, Cordoned)):
            yield Uncordon(gpu.index, gpu.uuid, node.name if node.in_cluster else "")
    yield from pods
    yield from (_wait_for(gpu, one) for gpu, one in changing if one.phase not in _SOON)
    yield from (RepairGpu(gpu.index, gpu.uuid) for gpu in concerned if any(_of_kind(node, gpu, Unhealthy)))


def _concerns(pod: PodNeeds, node: NodeView, gpu: GpuUuid) -> bool:
    """Whether the GPU offers, or will offer, something that the pod asks for."""
    rows = (*node.offer.get(gpu, ()), *(node.wanted or {}).get(gpu, ()))
    return any(row.resource in pod.gpu_resources for row in rows)


def _of_kind(node: NodeView, gpu: GpuView, kind: type[Obstacle]) -> Iterator[Changing]:
    """The obstacles of this kind on its devices, each once."""
    found: dict[Obstacle, None] = {}
    for device in sorted(devices_of_gpu(node, gpu.uuid)):
        found |= dict.fromkeys(
            obstacle for obstacle in node.obstacles.get(device, ()) if isinstance(obstacle, kind)
        )
    yield from found  # type: ignore[misc]


def _wait_for(gpu: GpuView, change: Changing) -> WaitForGpu:
    return WaitForGpu(gpu.index, gpu.uuid, change.pods)


def holders(pod: PodNeeds, node: NodeView) -> list[str]:
    """Who holds shares of what the pod asks for: those that hold least first, then by name."""
    counts = Counter(holder_of(node, hold) for hold in node.held if hold[0] in pod.gpu_resources)
    return sorted(counts, key=lambda who: (counts[who], who))


# --- the reason ------------------------------------------------------------------------------------


def _reason(
    pod: PodNeeds, node: NodeView, refusal: PodRefusal, change: Change | None, trials: Trials
) -> NodeReason:
    """Of the first thing that would have to end."""
    match change:
        case Uncordon():
            return GpuCordoned(change.gpu)
        case WaitForGpu():
            return GpuChanging(change.gpu, _said(node, change.uuid, Changing))
        case RepairGpu():
            return GpuUnhealthy(change.gpu, _said(node, change.uuid, Unhealthy))
        case None:
            for gpu in node.gpus:
                text = _said(node, gpu.uuid, Changing)
                rows = (*node.offer.get(gpu.uuid, ()), *(node.wanted or {}).get(gpu.uuid, ()))
                if text and any(row.resource == refusal.resource for row in rows):
                    return GpuChanging(gpu.index, text)
    if not refusal.offered:
        return NotOffered(refusal.resource, tuple(map(str, trials.admission(node).resources)))
    return _held(pod, node, refusal, trials)


def _said(node: NodeView, gpu: GpuUuid, kind: type[Changing] | type[Unhealthy]) -> str:
    for device in sorted(devices_of_gpu(node, gpu)):
        for obstacle in node.obstacles.get(device, ()):
            if isinstance(obstacle, kind):
                return obstacle.reason
    return ""


def _held(pod: PodNeeds, node: NodeView, refusal: PodRefusal, trials: Trials) -> AllHeld:
    resource = trials.admission(node).resources[refusal.resource]
    free = free_shares(node).get(ResourceName(refusal.resource), [])
    by_device = Counter(map(device_of, free))
    one_device = takes_one_device(resource) and refusal.amount > 1
    most = max(by_device.values(), default=0)
    return AllHeld(
        unit=unit_of(resource),
        asked=refusal.amount if one_device else pod.totals.get(refusal.resource, refusal.amount),
        free=most if one_device else len(free),
        total=resource.count,
        together=len(free) if one_device else None,
    )

"""Carries out a change on the values that describe a pod and a node, to see what it brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from partage.claims.decide.book import ClaimBook
from partage.claims.model.claim import DeviceAsk
from partage.claims.model.names import NAMES_OF_DRIVER
from partage.errors import InputError, Unsatisfiable
from partage.explain.decide.changes import (
    AskFewer,
    AskOther,
    Change,
    ClaimLess,
    ClaimOtherClass,
    DropAffinity,
    DropNodeName,
    DropSelector,
    LabelNode,
    MakeClaimObject,
    RaiseReplicas,
    RepairGpu,
    RepairNode,
    Tolerate,
    TolerateDevice,
    Uncordon,
    UncordonNode,
    WaitForGpu,
    WaitForPods,
)
from partage.explain.decide.pod_and_node import (
    NODE_STATE,
    Changing,
    Cordoned,
    Counted,
    NodeView,
    Obstacle,
    PodNeeds,
    Unhealthy,
    devices_of_gpu,
    holder_of,
)
from partage.kubernetes.decide.node_rules import Toleration
from partage.model.ids import DeviceUuid, GpuUuid, device_of
from partage.model.pod import Container
from partage.model.policy import Exclusive, GpuEntry, Policy, ResourceEntry
from partage.model.share import DeviceOffer, GpuOffer, Guarantee, NodeOffer
from partage.plan.offer.desired import resolve
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.node_plan import Phase
from partage.units import parse_quantity


def applied(
    change: Change, pod: PodNeeds, node: NodeView, geometry_of: GeometryOf
) -> tuple[PodNeeds, NodeView]:
    """Pod and node after the change. Where it cannot be carried out, they are as before."""
    match change:
        case AskFewer():
            resource = change.unit.resource
            return with_request(pod, change.container, resource, resource, change.then), node
        case AskOther():
            return with_request(
                pod, change.container, change.resource, change.other.resource, change.then
            ), node
        case Tolerate():
            operator = "Equal" if change.value else "Exists"
            toleration = Toleration(change.key, operator, change.value, change.effect)
            return replace(pod, tolerations=(*pod.tolerations, toleration)), node
        case DropAffinity():
            return replace(pod, affinity=None), node
        case DropNodeName():
            return replace(pod, node=""), node
        case RaiseReplicas():
            return pod, with_replicas(node, change, geometry_of)
        case ClaimLess() | ClaimOtherClass() | DropSelector() | TolerateDevice():
            return _with_claim(pod, change), node
        case MakeClaimObject():
            return pod, node
        case _:
            return pod, _changed(change, node)


def _changed(
    change: WaitForPods | WaitForGpu | Uncordon | RepairGpu | RepairNode | UncordonNode | LabelNode,
    node: NodeView,
) -> NodeView:
    match change:
        case WaitForPods():
            return _without_pods(node, frozenset(change.pods))
        case WaitForGpu():
            return _once_changed(node, change)
        case Uncordon():
            return _without(node, change.uuid, Cordoned)
        case RepairGpu():
            return _without(node, change.uuid, Unhealthy)
        case RepairNode():
            taints = tuple(taint for taint in node.taints if not taint.key.startswith(NODE_STATE))
            return replace(node, not_ready="", trouble="", taints=taints)
        case UncordonNode():
            return replace(node, unschedulable=False)
        case LabelNode():
            return replace(node, labels={**node.labels, change.key: change.value})


def _with_claim(
    pod: PodNeeds, change: ClaimLess | ClaimOtherClass | DropSelector | TolerateDevice
) -> PodNeeds:
    """The pod whose claims of that source ask for something else in that request."""

    def changed(way: DeviceAsk) -> DeviceAsk:
        if way.name != change.request:
            return way
        match change:
            case ClaimLess(capacity=capacity, then=then):
                return replace(way, named=tuple({**way.amounts, capacity: parse_quantity(then)}.items()))
            case ClaimOtherClass(then=then):
                return replace(way, device_class=then)
            case DropSelector(expression=expression):
                return replace(
                    way, selectors=tuple(selector for selector in way.selectors if selector != expression)
                )
            case TolerateDevice(key=key, value=value, effect=effect):
                operator = "Equal" if value else "Exists"
                toleration = Toleration(key, operator, value, effect)
                return replace(way, tolerations=(*way.tolerations, toleration))

    claims = []
    for claim in pod.claims:
        if claim.spec.title == change.source:
            requests = tuple(
                replace(request, ways=tuple(map(changed, request.ways))) for request in claim.spec.requests
            )
            claim = replace(claim, spec=replace(claim.spec, requests=requests))  # noqa: PLW2901
        claims.append(claim)
    return replace(pod, claims=tuple(claims))


def with_request(pod: PodNeeds, container: str, resource: str, other: str, amount: int) -> PodNeeds:
    """The pod whose container (by its words) asks for that in place of what it asked for."""

    def changed(one: Container) -> Container:
        if one.words != container:
            return one
        rest = {name: count for name, count in one.requests.items() if name != resource}
        return replace(one, requests={**rest, other: rest.get(other, 0) + amount})

    return replace(
        pod, containers=tuple(map(changed, pod.containers)), gpu_resources=pod.gpu_resources | {other}
    )


def _without_pods(node: NodeView, pods: frozenset[str]) -> NodeView:
    held = {hold: who for hold, who in node.held.items() if holder_of(node, hold) not in pods}
    counted = {
        name: Counted(one.total, tuple(user for user in one.users if user[0] not in pods))
        for name, one in node.counted.items()
    }
    obstacles = {
        device: tuple(_without_waiting(obstacle, pods) for obstacle in some)
        for device, some in node.obstacles.items()
    }
    ended = replace(node, held=held, counted=counted, obstacles=obstacles)
    if (book := node.published) is None:
        return ended
    left = tuple(taking for taking in book.takings if not taking.pods or not pods.issuperset(taking.pods))
    return replace(ended, published=replace(book, takings=left))


def _untainted(book: ClaimBook | None, gpu: GpuUuid, kind: type[Obstacle]) -> ClaimBook | None:
    """Without the taints by which the agent says this of the GPU's devices."""
    if book is None:
        return None
    keys = {f"{driver}/{word}" for driver in NAMES_OF_DRIVER for word in _TAINTS[kind]}
    devices = tuple(
        replace(
            device,
            device=replace(
                device.device, taints=tuple(taint for taint in device.device.taints if taint.key not in keys)
            ),
        )
        if device.gpu == gpu
        else device
        for device in book.devices
    )
    return replace(book, devices=devices)


_TAINTS: Mapping[type[Obstacle], tuple[str, ...]] = {
    Cordoned: ("cordoned",),
    Changing: ("changing",),
    Unhealthy: ("unhealthy", "unusable"),
}
"""Kinds of ``Closed`` (plan.serve.claim_offer)."""


def _without_waiting(obstacle: Obstacle, pods: frozenset[str]) -> Obstacle:
    """A change of a GPU no longer waits for pods that have ended."""
    if not isinstance(obstacle, Changing):
        return obstacle
    return replace(obstacle, pods=tuple(pod for pod in obstacle.pods if pod not in pods))


def _without(node: NodeView, gpu: GpuUuid, kind: type[Obstacle]) -> NodeView:
    devices = devices_of_gpu(node, gpu)

    def left(device: DeviceUuid, some: tuple[Obstacle, ...]) -> tuple[Obstacle, ...]:
        return tuple(obstacle for obstacle in some if device not in devices or not isinstance(obstacle, kind))

    obstacles = {device: left(device, some) for device, some in node.obstacles.items()}
    return replace(node, obstacles=obstacles, published=_untainted(node.published, gpu, kind))


def _once_changed(node: NodeView, change: WaitForGpu) -> NodeView:
    """The GPU offers what it is to offer, and the pods that it waited for have ended."""
    devices = devices_of_gpu(node, change.uuid)
    settled = _without(_without_pods_on(node, devices, change.pods), change.uuid, Changing)
    wanted = (node.wanted or {}).get(change.uuid)
    return settled if wanted is None else replace(settled, offer={**node.offer, change.uuid: wanted})


def _without_pods_on(node: NodeView, devices: frozenset[DeviceUuid], pods: tuple[str, ...]) -> NodeView:
    held = {
        hold: who
        for hold, who in node.held.items()
        if device_of(hold[1]) not in devices or holder_of(node, hold) not in pods
    }
    return replace(node, held=held)


def with_replicas(node: NodeView, change: RaiseReplicas, geometry_of: GeometryOf) -> NodeView:
    """The node under the changed policy. A GPU of which shares are held changes once they are given back."""
    if node.policy is None or node.inventory is None:
        return node
    policy = raised(node.policy, change.origin, change.then)
    try:
        wanted = resolve(policy, node.inventory, geometry_of).offer
    except (InputError, Unsatisfiable):
        return node
    return _towards(replace(node, policy=policy), wanted)


def _towards(node: NodeView, wanted: NodeOffer) -> NodeView:
    offer, obstacles = dict(node.offer), dict(node.obstacles)
    for gpu, rows in wanted.items():
        if _terms(rows) == _terms(node.offer.get(gpu, ())):
            continue
        devices = devices_of_gpu(node, gpu)
        pods = tuple(
            dict.fromkeys(holder_of(node, hold) for hold in node.held if device_of(hold[1]) in devices)
        )
        if not pods:
            offer[gpu] = rows
            continue
        waits = Changing(Phase.WAITING, "the policy has changed", pods)
        obstacles |= {device: (waits, *obstacles.get(device, ())) for device in devices}
    return replace(node, offer=offer, wanted=wanted, obstacles=obstacles)


def _terms(rows: GpuOffer) -> tuple[DeviceOffer, ...]:
    """Without the guarantees, which also depend on who watches the GPU."""
    return tuple(replace(row, guarantee=Guarantee.NONE) for row in rows)


def raised(policy: Policy, origin: str, replicas: int) -> Policy:
    """The policy with other replicas in one entry."""

    def changed(entry: GpuEntry | ResourceEntry) -> GpuEntry | ResourceEntry:
        if entry.origin != origin or isinstance(entry.sharing, Exclusive):
            return entry
        return replace(entry, sharing=replace(entry.sharing, replicas=replicas))

    return replace(policy, entries=tuple(map(changed, policy.entries)))


Applied = Callable[[Change, PodNeeds, NodeView], tuple[PodNeeds, NodeView]]
"""``applied`` with a catalogue of MIG geometries."""


def emptied(node: NodeView) -> NodeView:
    """The node with nobody on it, and nothing wrong with its GPUs."""
    counted: Mapping[str, Counted] = {name: Counted(one.total) for name, one in node.counted.items()}
    return replace(node, held={}, obstacles={}, narrowed=frozenset(), counted=counted)

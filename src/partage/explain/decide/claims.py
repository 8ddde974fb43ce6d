"""What keeps the claims of a pod from their devices on a node and on each GPU, and what would give them.

The devices are those that the node publishes, chosen as the scheduler chooses; what the scheduler would give
is then asked of the function with which the node's agent answers the kubelet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial

from msgspec.structs import replace

from partage.admission.decide.former import ClaimWords
from partage.claims.decide.book import BookDevice, ClaimBook, amount_of, book_of_offer
from partage.claims.decide.device_reasons import (
    CapacityTaken,
    CapacityTooSmall,
    CountersTaken,
    DeviceReason,
    DeviceTainted,
    DeviceTaken,
    SelectorBroken,
    SelectorSaysNo,
)
from partage.claims.decide.nearest import best_reason, nearest
from partage.claims.decide.scheduling import Placed, Unplaced, WayVerdict, place, refused_by_node
from partage.claims.model.claim import DeviceAsk, amount_words
from partage.claims.model.names import MEMORY, NAMES_OF_DRIVER
from partage.explain.decide.amounts import fewest
from partage.explain.decide.apply import Applied
from partage.explain.decide.changes import (
    Change,
    ClaimLess,
    ClaimOtherClass,
    DropSelector,
    MakeClaimObject,
    NodeFinding,
    RepairGpu,
    TolerateDevice,
    Uncordon,
    WaitForGpu,
    WaitForPods,
)
from partage.explain.decide.claim_reasons import (
    ClaimElsewhere,
    ClaimMissing,
    ClassUnknown,
    GpuForClaim,
    NodeRefusesClaim,
    NoDeviceEver,
    NoDeviceNow,
    NoDevicesForClaims,
)
from partage.explain.decide.gpus import GpuVerdict, obstacle_words
from partage.explain.decide.pod_and_node import (
    CLAIM_BY_NAME,
    Changing,
    GpuView,
    NodeView,
    Obstacle,
    PodNeeds,
    Unhealthy,
)
from partage.explain.decide.reasons import GpuOffersOther
from partage.model.ids import GpuUuid
from partage.plan.offer.select import GeometryOf
from partage.plan.serve.claim_offer import Closed
from partage.plan.serve.ledger_entry import Hold
from partage.text import count_of, listed

_Rated = Sequence[tuple[BookDevice, DeviceReason | None]]


def claim_verdicts(
    pod: PodNeeds, node: NodeView, others: Sequence[GpuVerdict], geometry_of: GeometryOf
) -> tuple[GpuVerdict, ...]:
    """Every GPU for the first request that gets nothing; where all get theirs, those that they are of.

    others: verdicts about what containers ask for by name; they stay for GPUs that are not for claims.
    """
    book = claim_book(node, geometry_of)
    missed = given_on(pod, node, geometry_of)
    indexes = {GpuUuid(device.gpu): device.gpu_index for device in book.devices if device.gpu}
    known = [view for view in node.gpus if view.uuid in indexes or view.index not in indexes.values()]
    known += [
        GpuView(index, gpu)
        for gpu, index in indexes.items()
        if index is not None and gpu not in {view.uuid for view in known}
    ]
    by_name = {verdict.uuid: verdict for verdict in others}
    found = []
    for view in sorted(known, key=lambda view: view.index):
        if view.uuid in indexes:
            found.append(_verdict(view, node, missed, book))
        elif view.uuid in by_name:
            found.append(by_name[view.uuid])
        else:
            found.append(_not_for_claims(view, node))
    return tuple(found)


def _verdict(view: GpuView, node: NodeView, missed: Placed | Unplaced, book: ClaimBook) -> GpuVerdict:
    if isinstance(missed, Placed):
        return GpuVerdict(view.index, view.uuid, None)
    rated = [(way, [row for row in way.devices if row[0].gpu == view.uuid]) for way in missed.ways]
    rated = [(way, rows) for way, rows in rated if rows]
    if not rated or any(reason is None for _, rows in rated for _, reason in rows):
        return GpuVerdict(view.index, view.uuid, None)
    way, rows = rated[-1]
    text, change = _why(missed, way, rows, node, book)
    return GpuVerdict(view.index, view.uuid, GpuForClaim(view.index, text), change)


def _why(
    missed: Unplaced, way: WayVerdict, rows: _Rated, node: NodeView, book: ClaimBook
) -> tuple[str, Change | None]:
    device, reason = best_reason([(device, reason) for device, reason in rows if reason is not None])
    alike = sum(type(other) is type(reason) for _, other in rows)
    text = str(reason) if len(rows) == 1 else f"{device.device.name} {reason}"
    if alike > 1:
        text += f" (the same of {count_of(alike - 1, 'more device')})"
    return text, way_of_device(missed.claim.spec.title, way.way, (device, reason), node, book)


def _not_for_claims(view: GpuView, node: NodeView) -> GpuVerdict:
    if obstacles := node.obstacles.get(view.uuid, ()):
        return GpuVerdict(view.index, view.uuid, *obstacle_words(node, view, obstacles[0]))
    names = tuple(dict.fromkeys(str(row.resource) for row in node.offer.get(view.uuid, ())))
    return GpuVerdict(view.index, view.uuid, GpuOffersOther(view.index, "", names))


_MOST_WAYS = 3


def claim_book(node: NodeView, geometry_of: GeometryOf) -> ClaimBook:
    """The node's devices for claims, and who has them."""
    if node.published is not None:
        return node.published
    if node.inventory is None:
        return ClaimBook(trouble=node.claims_trouble)
    closed = {device: _closed(some[0]) for device, some in node.obstacles.items() if some}
    book = book_of_offer(
        node.offer,
        node.inventory,
        node.name,
        geometry_of,
        held=node.held,
        closed=closed,
        names=node.claim_names,
        demands=node.demands,
    )
    return replace(book, trouble=node.claims_trouble)


def _closed(obstacle: Obstacle) -> Closed:
    match obstacle:
        case Unhealthy(reason=reason):
            return Closed("unhealthy", f"is not healthy: {reason}")
        case Changing():
            return Closed("changing", "is to be used in another way")
        case _:
            return Closed("cordoned", "is cordoned")


def given_on(pod: PodNeeds, node: NodeView, geometry_of: GeometryOf) -> Placed | Unplaced:
    """What the pod's claims would get there now, as the scheduler would choose it."""
    return place(pod.claims, claim_book(node, geometry_of), node.classes)


def claims_finding(
    pod: PodNeeds, node: NodeView, apply: Applied, geometry_of: GeometryOf
) -> NodeFinding | None:
    """The first thing that keeps the pod's claims from their devices. None: they get them."""
    if pod.claims_missing:
        source = pod.claims_missing[0]
        missing = ClaimMissing(source.name, str(source), pod.namespace)
        return NodeFinding(missing, ((MakeClaimObject(str(source)),),))
    book = claim_book(node, geometry_of)
    for title, pool in pod.claims_at.items():
        if pool not in {device.pool for device in book.devices}:
            return NodeFinding(ClaimElsewhere(title, pool))
    if not pod.claims:
        return None
    if book.trouble and not book.devices:
        name = pod.claims[0].spec.requests[0].name if pod.claims[0].spec.requests else ""
        return NodeFinding(NoDevicesForClaims(name, book.trouble))
    helps = partial(_helps, pod=pod, node=node, apply=apply, geometry_of=geometry_of)
    ever = place(pod.claims, _empty(book), node.classes)
    if isinstance(ever, Unplaced):
        tried = dict.fromkeys(_ways_ever(ever, node, pod))
        ways = [change for change in tried if helps(change, ever=ever)]
        return NodeFinding(_reason_ever(ever, node, book), tuple((way,) for way in ways[:_MOST_WAYS]))
    now = place(pod.claims, book, node.classes)
    if isinstance(now, Unplaced):
        tried = dict.fromkeys(_ways_now(now, node, book, pod))
        found = [change for change in tried if helps(change, now=now)]
        ways = _of_each_kind(found)
        request = now.request.name
        return NodeFinding(
            NoDeviceNow(request, now.request.ways[0].words, nearest(now)), tuple((way,) for way in ways)
        )
    refused = refused_by_node(pod.claims, now, book, node.classes, _words(node))
    if refused is not None:
        return NodeFinding(NodeRefusesClaim(refused.reason.value, refused.text))
    return None


def _words(node: NodeView) -> dict[Hold, str]:
    return {hold: f"pod {who}" if who else "a pod" for hold, who in node.held.items()}


def _empty(book: ClaimBook) -> ClaimBook:
    """With nobody on it, and nothing wrong with its GPUs."""
    devices = tuple(replace(device, device=replace(device.device, taints=())) for device in book.devices)
    return replace(book, devices=devices, takings=())


def _helps(
    change: Change,
    *,
    pod: PodNeeds,
    node: NodeView,
    apply: Applied,
    geometry_of: GeometryOf,
    ever: Unplaced | None = None,
    now: Unplaced | None = None,
) -> bool:
    """Whether the request gets its devices after the change; a later one may still get none."""
    changed, there = apply(change, pod, node)
    book = claim_book(there, geometry_of)
    found = place(changed.claims, book if now is not None else _empty(book), there.classes)
    before = now or ever
    assert before is not None
    if isinstance(found, Placed):
        return True
    names = [(claim.name, request.name) for claim in pod.claims for request in claim.spec.requests]
    at = {key: number for number, key in enumerate(names)}
    return at[found.claim.name, found.request.name] > at[before.claim.name, before.request.name]


def _of_each_kind(changes: list[Change]) -> list[Change]:
    """The first of each kind."""
    return list({type(change): change for change in reversed(changes)}.values())[::-1]


# --- reasons -------------------------------------------------------------------------------------------


def _reason_ever(
    missed: Unplaced, node: NodeView, book: ClaimBook
) -> ClassUnknown | NoDevicesForClaims | NoDeviceEver:
    request = missed.request.name
    if missed.classes:
        return ClassUnknown(request, missed.classes[0], tuple(sorted(node.classes)))
    if not book.devices:
        why = "no GPU of the node is for claims ('via: claims' in its policy)"
        return NoDevicesForClaims(request, why)
    return NoDeviceEver(request, missed.request.ways[0].words, nearest(missed))


# --- ways out ------------------------------------------------------------------------------------------


def _ways_ever(missed: Unplaced, node: NodeView, pod: PodNeeds) -> Iterator[Change]:
    source, words = missed.claim.spec.title, _former_words(missed, pod)
    for way in missed.ways:
        yield from _less(source, way, words)
        for _, reason in way.devices:
            if isinstance(reason, SelectorSaysNo | SelectorBroken) and reason.expression in way.way.selectors:
                theirs = words.rules.get(reason.expression, "") if words is not None else ""
                if theirs or words is None:
                    yield DropSelector(source, way.way.name, reason.expression, theirs)
    # What is asked for by a resource's name, or was written for another system, names no class itself.
    named = words is None and missed.claim.name != CLAIM_BY_NAME
    for lesser in missed.request.ways[:1] if named else ():
        for other in sorted(node.classes, key=lambda name: (_far(lesser.device_class, name), name)):
            if other != lesser.device_class:
                yield ClaimOtherClass(source, lesser.name, lesser.device_class, other)


def _former_words(missed: Unplaced, pod: PodNeeds) -> ClaimWords | None:
    return None if pod.former is None else pod.former.claims.get(missed.claim.name)


def _far(asked: str, name: str) -> int:
    """How many characters at the beginning are not the same."""
    same = next(
        (at for at, (one, other) in enumerate(zip(asked, name, strict=False)) if one != other),
        min(len(asked), len(name)),
    )
    return max(len(asked), len(name)) - same


def _less(source: str, way: WayVerdict, words: ClaimWords | None) -> Iterator[ClaimLess]:
    """The largest amount that any device could give; words: that can be written in them."""
    found: dict[str, tuple[Decimal, BookDevice]] = {}
    for device, reason in way.devices:
        match reason:
            case CapacityTooSmall(name=name, most=most) | CapacityTaken(name=name, free=most):
                if most > 0 and name in way.way.amounts and most > found.get(name, (Decimal(0), device))[0]:
                    found[name] = most, device
    for name, (most, device) in found.items():
        now = amount_words(way.way.amounts[name])
        if words is None:
            yield ClaimLess(source, way.way.name, now, amount_words(most), name)
            continue
        total = amount_of(device.device, MEMORY) if MEMORY in device.device.capacity else Decimal(0)
        for word in words.amounts:
            number = word.at_most(most, total)
            if word.capacity == name and number > 0:
                then = amount_words(word.amount(number, total))
                theirs = f"{word.then(number)} in {listed(words.containers)}"
                yield ClaimLess(source, way.way.name, now, then, name, theirs)


def _ways_now(missed: Unplaced, node: NodeView, book: ClaimBook, pod: PodNeeds) -> Iterator[Change]:
    """What may end on the node, the least first; then what the claim could do."""
    source = missed.claim.spec.title
    rated = [(way, device, reason) for way in missed.ways for device, reason in way.devices]
    waits = [pods for _, device, reason in rated if (pods := _holders(device, reason, book))]
    yield from (WaitForPods(pods) for pods in sorted(waits, key=len))
    for way, device, reason in rated:
        if isinstance(reason, DeviceTainted):
            yield _without_taint(source, way.way, device, reason, node)
    if waits:
        yield WaitForPods(tuple(dict.fromkeys(pod for pods in waits for pod in pods)))
    for way in missed.ways:
        yield from _less(source, way, _former_words(missed, pod))


def way_of_device(
    source: str, way: DeviceAsk, rated: tuple[BookDevice, DeviceReason], node: NodeView, book: ClaimBook
) -> Change | None:
    """What would let the request have this device; None: nothing that ends."""
    device, reason = rated
    if isinstance(reason, DeviceTainted):
        return _without_taint(source, way, device, reason, node)
    pods = _holders(device, reason, book)
    return WaitForPods(pods) if pods else None


def _holders(device: BookDevice, reason: DeviceReason | None, book: ClaimBook) -> tuple[str, ...]:
    """The fewest pods whose end leaves enough of the device; none where that is not known."""
    if isinstance(reason, DeviceTaken):
        return reason.pods
    if isinstance(reason, CountersTaken):
        return _users(reason)
    if not isinstance(reason, CapacityTaken):
        return ()
    users: dict[tuple[str, ...], int] = {}
    for taking in book.of_device(device.key):
        if taking.pods:
            had = users.get(taking.pods, 0)
            users[taking.pods] = had + int(taking.amounts.get(reason.name, Decimal(0)))
    chosen = fewest(users, int(reason.asked - reason.free)) or ()
    return tuple(dict.fromkeys(pod for pods in chosen for pod in pods))


def _users(reason: CountersTaken) -> tuple[str, ...]:
    chosen: dict[str, None] = {}
    for lacking in reason.lacking:
        back = {pods: int(amount) for pods, amount in lacking.by_pods.items()}
        some = fewest(back, int(lacking.asked - lacking.free))
        if some is None:
            return ()
        chosen |= dict.fromkeys(pod for pods in some for pod in pods)
    return tuple(chosen)


def _without_taint(
    source: str, way: DeviceAsk, device: BookDevice, taint: DeviceTainted, node: NodeView
) -> Change:
    gpu, index = GpuUuid(device.gpu), device.gpu_index
    if index is None:  # NVIDIA's driver publishes none
        index = node.index_of(gpu)
    domain, _, word = taint.key.rpartition("/")
    if domain not in NAMES_OF_DRIVER or index is None:
        return TolerateDevice(source, way.name, taint.key, taint.value, taint.effect)
    match word:
        case "cordoned":
            return Uncordon(index, gpu, node.name if node.in_cluster else "")
        case "changing":
            waiting = [obstacle for obstacle in node.obstacles.get(gpu, ()) if isinstance(obstacle, Changing)]
            return WaitForGpu(index, gpu, waiting[0].pods if waiting else ())
        case _:
            return RepairGpu(index, gpu)

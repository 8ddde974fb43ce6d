"""What one GPU has for a pod: why it is not enough, and what would make it so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from partage.explain.decide.amounts import fewest
from partage.explain.decide.changes import Change, RepairGpu, Uncordon, WaitForGpu, WaitForPods
from partage.explain.decide.never import takes_one_device, unit_of
from partage.explain.decide.pod_and_node import (
    Ask,
    Changing,
    Cordoned,
    GpuView,
    NodeView,
    Obstacle,
    PodNeeds,
    Unhealthy,
    holder_of,
)
from partage.explain.decide.reasons import (
    GpuChanging,
    GpuCordoned,
    GpuGivesPart,
    GpuHeld,
    GpuOffersOther,
    GpuReason,
    GpuTooSmall,
    GpuUnhealthy,
)
from partage.model.ids import DeviceUuid, GpuUuid, ResourceName
from partage.model.share import DeviceOffer, Resource
from partage.values import Frozen


class GpuVerdict(Frozen):
    """One GPU. reason: why it cannot give what is asked for; None: it can. change: what would let it."""

    index: int
    uuid: GpuUuid
    reason: GpuReason | None
    change: Change | None = None


def gpu_verdicts(pod: PodNeeds, node: NodeView) -> tuple[GpuVerdict, ...]:
    """Every GPU of the node, each for the largest request of the pod for something that it is offered as; for
    the largest of all where there is none.
    """
    asks = sorted(pod.asks, key=lambda ask: (ask[1] in node.names, ask[2]))
    if not asks:
        return ()
    return tuple(_verdict(node, gpu, *_asked(asks, node, gpu)) for gpu in node.gpus)


def _asked(asks: Sequence[Ask], node: NodeView, gpu: GpuView) -> tuple[ResourceName, int]:
    rows = (*node.offer.get(gpu.uuid, ()), *(node.wanted or {}).get(gpu.uuid, ()))
    names = {row.resource for row in rows}
    _, name, amount = next((ask for ask in reversed(asks) if ask[1] in names), asks[-1])
    return ResourceName(name), amount


def _verdict(node: NodeView, gpu: GpuView, name: ResourceName, asked: int) -> GpuVerdict:
    rows = [row for row in node.offer.get(gpu.uuid, ()) if row.resource == name]
    obstacle = _obstacle(node, gpu, rows, name)
    if obstacle is not None:
        return GpuVerdict(gpu.index, gpu.uuid, *obstacle_words(node, gpu, obstacle))
    if not rows:
        names = tuple(dict.fromkeys(str(row.resource) for row in node.offer.get(gpu.uuid, ())))
        if not names and isinstance(sick := next(iter(node.obstacles.get(gpu.uuid, ())), None), Unhealthy):
            return GpuVerdict(gpu.index, gpu.uuid, GpuUnhealthy(gpu.index, sick.reason))
        return GpuVerdict(gpu.index, gpu.uuid, GpuOffersOther(gpu.index, name, names))
    return GpuVerdict(gpu.index, gpu.uuid, *_of_room(node, gpu, Resource(name, tuple(rows)), asked))


def _obstacle(node: NodeView, gpu: GpuView, rows: list[DeviceOffer], name: ResourceName) -> Obstacle | None:
    """Of a GPU whose devices under that name are all obstructed, or that will be offered so."""
    if rows:
        found = [node.obstacles.get(row.device, ()) for row in rows]
        return found[0][0] if all(found) else None
    will = any(row.resource == name for row in (node.wanted or {}).get(gpu.uuid, ()))
    here = node.obstacles.get(gpu.uuid, ())
    return here[0] if will and here else None


def obstacle_words(node: NodeView, gpu: GpuView, obstacle: Obstacle) -> tuple[GpuReason, Change]:
    """Why nobody gets a free share of a GPU, and what would end that."""
    match obstacle:
        case Cordoned():
            change = Uncordon(gpu.index, gpu.uuid, node.name if node.in_cluster else "")
            return GpuCordoned(gpu.index), change
        case Unhealthy():
            return GpuUnhealthy(gpu.index, obstacle.reason), RepairGpu(gpu.index, gpu.uuid)
        case Changing():
            return GpuChanging(gpu.index, obstacle.reason), WaitForGpu(gpu.index, gpu.uuid, obstacle.pods)


def _of_room(
    node: NodeView, gpu: GpuView, resource: Resource, asked: int
) -> tuple[GpuReason | None, Change | None]:
    """What is free of it. Of a resource whose shares may be of several GPUs, one share is something."""
    single = all(row.single for row in resource.offerings)
    one_device = takes_one_device(resource)
    need = 1 if single else asked
    free, total = _free(node, resource, one_device=one_device)
    if free >= need:
        return None, None
    if total < need and one_device:
        return GpuTooSmall(gpu.index, unit_of(resource), need, total), None
    if free and not one_device:
        return GpuGivesPart(gpu.index, resource.name, free, need), None
    pods = tuple(dict.fromkeys(_holders(node, resource)))
    named = tuple(pod for pod in pods if not pod.startswith("?"))
    reason = GpuHeld(gpu.index, unit_of(resource), free, total, named)
    enough = _enough(node, resource, min(need, total), one_device=one_device)
    return reason, WaitForPods(enough) if enough else None


def _free(node: NodeView, resource: Resource, *, one_device: bool) -> tuple[int, int]:
    """Free shares and all shares; of the device with most free where one has to give everything."""
    free: dict[DeviceUuid, int] = {}
    total: dict[DeviceUuid, int] = {}
    for row in resource.offerings:
        total[row.device] = total.get(row.device, 0) + row.count
        usable = not node.obstacles.get(row.device)
        count = sum((resource.name, share) not in node.held for share in row.share_ids) if usable else 0
        free[row.device] = free.get(row.device, 0) + count
    if not one_device:
        return sum(free.values()), sum(total.values())
    best = max(free, key=lambda device: (free[device], total[device]))
    return free[best], total[best]


def _holders(node: NodeView, resource: Resource) -> Iterator[str]:
    for row in resource.offerings:
        for share in row.share_ids:
            if (resource.name, share) in node.held:
                yield holder_of(node, (resource.name, share))


def _enough(node: NodeView, resource: Resource, need: int, *, one_device: bool) -> tuple[str, ...]:
    """The fewest pods whose end leaves so much free: one that is enough, the smallest such, else the largest
    ones.
    """
    ways = []
    devices = dict.fromkeys(row.device for row in resource.offerings)
    groups = [(device,) for device in devices] if one_device else [tuple(devices)]
    for group in groups:
        part = Resource(resource.name, tuple(row for row in resource.offerings if row.device in group))
        free, _ = _free(node, part, one_device=False)
        counts = Counter(_holders(node, part))
        if (pods := fewest(counts, need - free)) is not None:
            ways.append(pods)
    return min(ways, key=len, default=())

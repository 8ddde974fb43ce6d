"""What one GPU has for the claims of a pod: why it is not enough, and what would make it so."""

from __future__ import annotations

from collections.abc import Sequence

from partage.claims.decide.book import BookDevice, ClaimBook
from partage.claims.decide.device_reasons import DeviceReason
from partage.claims.decide.nearest import best_reason
from partage.claims.decide.scheduling import Placed, Unplaced, WayVerdict
from partage.explain.decide.changes import Change
from partage.explain.decide.claim_reasons import GpuForClaim
from partage.explain.decide.claims import claim_book, given_on, way_of_device
from partage.explain.decide.gpus import GpuVerdict, obstacle_words
from partage.explain.decide.node import GpuView, NodeView
from partage.explain.decide.pod import PodNeeds
from partage.explain.decide.reasons import GpuOffersOther
from partage.model.ids import GpuUuid
from partage.plan.offer.select import GeometryOf
from partage.text import count_of

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

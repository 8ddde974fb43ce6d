"""What the kubelet gets: the ListAndWatch rows of every resource. Pure.

An id that nobody may get any more is never simply left out (docs/adr/0129). The kubelet may be giving it away
at that moment, and it ends if such an id is not in the list when Allocate has answered: a free one is listed
unhealthy first, and left out later. One that is held would be given on in the moment in which its holder
ends: it is listed unhealthy, too, as soon as the kubelet cannot avoid it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import field
from msgspec.structs import replace

from partage.model.gpu import Gpu, gpu_of_mig_devices
from partage.model.health import Health
from partage.model.ids import DeviceUuid, GpuUuid, ResourceName, ShareId
from partage.model.share import DeviceRow, GpuOffer, NodeOffer
from partage.model.strategy import Via
from partage.plan.reconcile.transition import GpuServing, ListedShare, answerable_offer, listed_shares
from partage.plan.serve.ledger_entry import HeldIds
from partage.plan.serve.unit_allocation import RefusedAmounts, one_device_where_needed
from partage.values import Frozen

_Key = tuple[
    Mapping[GpuUuid, GpuServing],
    int,
    Mapping[DeviceUuid, bool],
    frozenset[GpuUuid],
    Mapping[ResourceName, RefusedAmounts],
]


class KubeletView(Frozen):
    """What the kubelet gets. key: the inputs it was computed from.

    by_resource: the rows of ListAndWatch. gpu_of: MIG device UUID to GPU UUID. offer: all that can be held.
    withdrawn: free ids that are still listed, unhealthy, and since when.
    awaited: held ids that nobody else may get when their holders end, healthy or not, of devices that work.
    blocked: how many free shares of a resource the scheduler cannot give, because held ones are unhealthy.
    """

    key: _Key
    by_resource: Mapping[ResourceName, tuple[DeviceRow, ...]]
    gpu_of: Mapping[DeviceUuid, GpuUuid]
    offer: NodeOffer
    withdrawn: Mapping[ResourceName, Mapping[ShareId, float]] = field(default_factory=dict)
    awaited: Mapping[ResourceName, frozenset[ShareId]] = field(default_factory=dict)
    blocked: Mapping[ResourceName, int] = field(default_factory=dict)

    @property
    def healthy(self) -> Mapping[DeviceUuid, bool]:
        """Whether the shares of each device that is offered are healthy."""
        return self.key[2]


EMPTY_VIEW = KubeletView(({}, -1, {}, frozenset(), {}), {}, {}, {})


class ShareHealth(Frozen):
    """What decides whether a share is healthy.

    known: every GPU as last observed. health: by GPU UUID. unusable: devices whose shares cannot be used.
    whole: a GPU in MIG mode is offered as a whole (MIG strategy ``none``). cordoned: GPUs whose free shares
    nobody gets.
    """

    known: Mapping[GpuUuid, Gpu]
    health: Mapping[GpuUuid, Health]
    unusable: Mapping[DeviceUuid, str]
    whole: bool = False
    cordoned: frozenset[GpuUuid] = frozenset()


def kubelet_view(
    serving: Mapping[GpuUuid, GpuServing],
    condition: ShareHealth,
    held: HeldIds,
    held_version: int,
    before: KubeletView,
    *,
    now_s: float,
    applied_s: float,
    refused: Mapping[ResourceName, RefusedAmounts],
) -> KubeletView:
    """The current view; ``before`` itself if nothing changes. held_version: of the ledger. refused: amounts
    that no device had free. applied_s: the kubelet has applied all lists until then, and no Allocate for an
    id that was unhealthy in them is under way.
    """
    gpu_of = gpu_of_mig_devices(condition.known.values())
    offer = answerable_offer(serving)
    healthy = _healthy(offer, condition)
    key: _Key = (serving, held_version, healthy, condition.cordoned, refused)
    if key == before.key and gpu_of == before.gpu_of and not _can_be_left_out(before, applied_s):
        return before
    rows: dict[ResourceName, tuple[DeviceRow, ...]] = {}
    awaited, blocked = {}, {}
    for name, shares in listed_shares(serving, held, gpu_of).items():
        if not _is_ours(shares):
            continue
        ids = held.ids.get(name, frozenset())
        left = held.left.get(name, frozenset())
        listed = tuple(_device_rows(shares, healthy, condition.cordoned, ids, left))
        listed = one_device_where_needed(listed, ids, refused.get(name))
        awaited[name] = _awaited(shares, listed, condition.cordoned)
        admitted = awaited[name] & held.admitted.get(name, frozenset())
        rows[name] = given_to_nobody_else(listed, admitted, ids, held.largest.get(name, 1))
        blocked[name] = _blocked(rows[name], admitted, ids)
    withdrawn = _withdrawn(rows, _listed_before(before, serving), before, now_s, applied_s)
    for name, since in withdrawn.items():
        rows[name] = (*rows.get(name, ()), *since)
    return KubeletView(
        key,
        rows,
        gpu_of,
        offer,
        withdrawn={
            name: {row.id: since_s for row, since_s in since.items()} for name, since in withdrawn.items()
        },
        awaited={name: ids for name, ids in awaited.items() if ids},
        blocked={name: count for name, count in blocked.items() if count},
    )


def given_to_nobody_else(
    rows: tuple[DeviceRow, ...], awaited: Collection[ShareId], held: Collection[ShareId], largest: int
) -> tuple[DeviceRow, ...]:
    """The rows, in which the ids of ``awaited`` are unhealthy as soon as the kubelet could not avoid them.

    The scheduler counts their holders against the healthy ids, so each of them takes a free share of the same
    name away. So they stay healthy while others are free for the largest pod: GetPreferredAllocation
    chooses those. held: all held ids.
    """
    if _free(rows, awaited, held) >= largest:
        return rows
    return tuple(replace(row, healthy=False) if row.id in awaited else row for row in rows)


def _is_ours(rows: Sequence[ListedShare]) -> bool:
    """Whether any of its shares is on a GPU of this node."""
    return not rows or any(row.gpu for row in rows)


def _awaited(
    shares: Sequence[ListedShare], rows: Sequence[DeviceRow], cordoned: Collection[GpuUuid]
) -> frozenset[ShareId]:
    """Held ids that nobody else may get: their device waits for their end, or their GPU is cordoned, of which
    no free row is healthy.
    """
    return frozenset(
        row.id
        for share, row in zip(shares, rows, strict=True)
        if row.healthy and (share.awaited or share.gpu in cordoned)
    )


def _blocked(rows: Sequence[DeviceRow], awaited: Collection[ShareId], held: Collection[ShareId]) -> int:
    unhealthy = sum(row.id in awaited and not row.healthy for row in rows)
    return min(unhealthy, _free(rows, awaited, held))


def _free(rows: Iterable[DeviceRow], awaited: Collection[ShareId], held: Collection[ShareId]) -> int:
    return sum(row.healthy and row.id not in held and row.id not in awaited for row in rows)


def _listed_before(
    before: KubeletView, serving: Mapping[GpuUuid, GpuServing]
) -> Mapping[ResourceName, Iterable[DeviceRow]]:
    """What the kubelet may have in its lists. With the first view, the agent's predecessor may have listed
    all that is served.
    """
    if before is not EMPTY_VIEW:
        return before.by_resource
    listed: dict[ResourceName, list[DeviceRow]] = {}
    offer = answerable_offer(serving)
    for offering in (row for rows in offer.values() for row in rows if row.via is Via.DEVICE_PLUGIN):
        rows = listed.setdefault(offering.resource, [])
        rows += [
            DeviceRow(share, healthy=False, numa_node=offering.numa_node) for share in offering.share_ids
        ]
    return listed


def _withdrawn(
    rows: Mapping[ResourceName, Sequence[DeviceRow]],
    listed_before: Mapping[ResourceName, Iterable[DeviceRow]],
    before: KubeletView,
    now_s: float,
    applied_s: float,
) -> dict[ResourceName, dict[DeviceRow, float]]:
    """The rows of ids that are withdrawn, by resource, and since when. Until the kubelet has applied that, an
    Allocate may be under way."""
    withdrawn: dict[ResourceName, dict[DeviceRow, float]] = {}
    for name, rows_before in listed_before.items():
        listed = {row.id for row in rows.get(name, ())}
        since = before.withdrawn.get(name, {})
        left = {
            replace(row, healthy=False): since.get(row.id, now_s)
            for row in rows_before
            if row.id not in listed and since.get(row.id, now_s) > applied_s
        }
        if left:
            withdrawn[name] = left
    return withdrawn


def _can_be_left_out(before: KubeletView, applied_s: float) -> bool:
    return any(since_s <= applied_s for since in before.withdrawn.values() for since_s in since.values())


def _device_rows(
    rows: Iterable[ListedShare],
    healthy: Mapping[DeviceUuid, bool],
    cordoned: frozenset[GpuUuid],
    held: frozenset[ShareId],
    left: Collection[ShareId],
) -> Iterator[DeviceRow]:
    """Of a cordoned GPU, what is held is healthy here: ``given_to_nobody_else`` decides. left: ids of which
    only processes of a former holder are left; nobody gets them.
    """
    for row in rows:
        if row.offering is None or row.id in left:
            numa_node = row.offering.numa_node if row.offering else None
            yield DeviceRow(row.id, healthy=False, numa_node=numa_node)
        else:
            kept = row.gpu not in cordoned or row.id in held
            yield DeviceRow(row.id, kept and healthy[row.offering.device], row.offering.numa_node)


def _healthy(offer: NodeOffer, condition: ShareHealth) -> dict[DeviceUuid, bool]:
    """Device UUID to whether its shares go to the kubelet as Healthy.

    The id of a device that was destroyed while held stays listed until the pod ends; no other pod may get it.
    """
    known, health = condition.known, condition.health
    instances: dict[DeviceUuid, int] = {
        device.uuid: device.gi_id for gpu in known.values() for device in gpu.mig_devices
    }
    return {
        device.device: device.device not in away and health[uuid].offered(instances.get(device.device))
        for uuid, devices in offer.items()
        for away in [condition.unusable.keys() | _gone(devices, known.get(uuid), whole=condition.whole)]
        for device in devices
    }


def _gone(offer: GpuOffer, gpu: Gpu | None, *, whole: bool) -> set[DeviceUuid]:
    """Devices of one GPU that do not exist any more: MIG devices, and the GPU itself in MIG mode."""
    if gpu is None:
        return set()
    there: set[DeviceUuid] = {device.uuid for device in gpu.mig_devices}
    if not gpu.mig_enabled or whole:
        there.add(gpu.uuid)
    return {offering.device for offering in offer} - there

"""What the kubelet gets: the ListAndWatch rows of every resource, and the ids that Allocate answers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import field

from partage.model.gpu import Gpu, gpu_of_mig_devices
from partage.model.health import Health
from partage.model.ids import DeviceUuid, GpuUuid, ResourceName, ShareId
from partage.model.share import DeviceRow, GpuOffer, NodeOffer
from partage.plan.reconcile.transition import GpuServing, ListedShare, answerable_offer, listed_shares
from partage.plan.serve.fragmentation import RefusedAmounts, one_device_where_needed
from partage.plan.serve.ledger_entry import HeldIds
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
    late: withdrawn ids, and until when an Allocate that was under way is still answered for them.
    """

    key: _Key
    by_resource: Mapping[ResourceName, tuple[DeviceRow, ...]]
    gpu_of: Mapping[DeviceUuid, GpuUuid]
    offer: NodeOffer
    late: Mapping[ShareId, float] = field(default_factory=dict)


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
    withdraw_s: float,
    refused: Mapping[ResourceName, RefusedAmounts] | None = None,
) -> KubeletView:
    """The current view; ``before`` itself if nothing changes. held_version: of the ledger. refused: amounts
    that no device had free.
    """
    refused = refused or {}
    gpu_of = gpu_of_mig_devices(condition.known.values())
    offer = answerable_offer(serving)
    healthy = _healthy(offer, condition)
    key: _Key = (serving, held_version, healthy, condition.cordoned, refused)
    if key == before.key and gpu_of == before.gpu_of:
        return before
    rows = {
        name: one_device_where_needed(
            tuple(_device_rows(resource_rows, healthy, condition.cordoned, ids, held.left.get(name, ()))),
            ids,
            refused.get(name),
        )
        for name, resource_rows in listed_shares(serving, held, gpu_of).items()
        for ids in [held.ids.get(name, frozenset())]
        if _is_ours(resource_rows)
    }
    return KubeletView(key, rows, gpu_of, offer, _late(serving, rows, before, now_s, withdraw_s))


def _is_ours(rows: Sequence[ListedShare]) -> bool:
    """Whether any of its shares is on a GPU of this node."""
    return not rows or any(row.gpu for row in rows)


def _late(
    serving: Mapping[GpuUuid, GpuServing],
    rows: Mapping[ResourceName, Sequence[DeviceRow]],
    before: KubeletView,
    now_s: float,
    withdraw_s: float,
) -> dict[ShareId, float]:
    """Ids that were withdrawn recently, and until when they are answered.

    An id may be withdrawn long after its GPU began to wait: when its holder released it. The kubelet may be
    allocating it to the next pod at that moment. With the first view, the agent's predecessor may have listed
    it until now.
    """
    changing = [now for now in serving.values() if now.draining or now.leaving]
    if not changing:
        return {}
    listed_now = {row.id for resource_rows in rows.values() for row in resource_rows}
    listed_before = {row.id for resource_rows in before.by_resource.values() for row in resource_rows}
    late: dict[ShareId, float] = {}
    for now in changing:
        for offering in (*now.offer, *now.leaving) if now.draining else now.leaving:
            for share in offering.share_ids:
                if share in listed_now:
                    continue
                if share in listed_before or before is EMPTY_VIEW:
                    late[share] = now_s + withdraw_s
                elif share in before.late:
                    late[share] = before.late[share]
    return late


def _device_rows(
    rows: Iterable[ListedShare],
    healthy: Mapping[DeviceUuid, bool],
    cordoned: frozenset[GpuUuid],
    held: frozenset[ShareId],
    left: Collection[ShareId],
) -> Iterator[DeviceRow]:
    """Of a cordoned GPU, what is held stays healthy: a container that starts again needs it. left: ids of
    which only processes of a former holder are left; nobody gets them."""
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
        one.device: one.device not in away and health[uuid].offered(instances.get(one.device))
        for uuid, devices in offer.items()
        for away in [condition.unusable.keys() | _gone(devices, known.get(uuid), whole=condition.whole)]
        for one in devices
    }


def _gone(offer: GpuOffer, gpu: Gpu | None, *, whole: bool) -> set[DeviceUuid]:
    """Devices of one GPU that do not exist any more: MIG devices, and the GPU itself in MIG mode."""
    if gpu is None:
        return set()
    there: set[DeviceUuid] = {device.uuid for device in gpu.mig_devices}
    if not gpu.mig_enabled or whole:
        there.add(gpu.uuid)
    return {one.device for one in offer} - there

"""How a GPU changes from one offer to the next: only when no share of it is held.

Invariant: the shares held on one GPU all belong to one strategy and one set of terms. MIG devices may be
added and removed while others of the same strategy stay: the hardware isolates them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from msgspec import Struct, field

from partage.model.ids import DEVICE_CLASSES, DeviceUuid, GpuUuid, ResourceName, ShareId, device_of
from partage.model.share import DeviceOffer, GpuOffer, NodeOffer, plugin_resources
from partage.plan.serve.ledger_entry import HeldIds, Hold, LedgerEntry
from partage.values import Frozen

_NO_DEVICES: Mapping[DeviceUuid, GpuUuid] = MappingProxyType({})


class GpuServing(Frozen):
    """What one GPU offers now.

    offer: the offers of its held ids, and of its free ids unless draining.
    leaving: MIG devices that are no longer wanted while the rest of the GPU stays: only held ids are listed.
    draining: the GPU waits to change: only held ids are listed. draining_since_s: on the caller's clock; None
    if it does not drain.
    empty_since_s: since when no awaited share is held; None while one is held, or none is awaited.
    once_more: of what waits, the free ids that are still given, each once: nobody is asked to leave any more.
    None: no drain was given up.
    """

    offer: GpuOffer
    leaving: GpuOffer = ()
    draining: bool = False
    draining_since_s: float | None = None
    empty_since_s: float | None = None
    once_more: tuple[Hold, ...] | None = None


class ListedShare(Frozen):
    """One id that is listed to the kubelet.

    offering: its offer. None for a foreign hold: a held id of which no offer is known; it is listed as
    unhealthy, so that the kubelet keeps it and allocates it to no other pod.
    gpu: None if a foreign hold is on no known GPU.
    awaited: it is held, and its device waits for its end: no other container is to get it.
    """

    resource: ResourceName
    id: ShareId
    gpu: GpuUuid | None
    offering: DeviceOffer | None
    awaited: bool = False


class _GpuHolds(Struct):
    """The held ids of one GPU. own: with the offers they belong to. in_conflict: they exclude each other.
    drained_in_vain: their pods were asked to leave, and are not asked any more.
    """

    own: list[tuple[Hold, DeviceOffer]] = field(default_factory=list)
    foreign: list[Hold] = field(default_factory=list)
    in_conflict: bool = False
    drained_in_vain: bool = False

    @property
    def must_end(self) -> bool:
        """Nothing is offered on the GPU before these holds have ended."""
        return bool(self.foreign) or self.in_conflict


def transition(
    serving: Mapping[GpuUuid, GpuServing],
    wanted: NodeOffer,
    held: HeldIds,
    now_s: float,
    withdraw_s: float,
    *,
    gpu_of: Mapping[DeviceUuid, GpuUuid] = _NO_DEVICES,
    in_conflict: Collection[GpuUuid] = (),
    gave_up: Collection[GpuUuid] = (),
) -> dict[GpuUuid, GpuServing]:
    """One step from ``serving`` towards ``wanted``, GPU by GPU.

    A GPU whose offer matches is not changed (and stops draining). One that serves nothing yet starts with
    the wanted offer. One that differs drains; once no share of it was held for withdraw_s, it changes. A GPU
    that is no longer wanted drains and is dropped. A GPU with a foreign hold (``foreign_holds``) drains
    too, and so does one whose holds exclude each other (in_conflict). withdraw_s gives the kubelet time: an
    Allocate for an id that was just withdrawn may be under way, and is still answered (``answerable_offer``).
    Of a GPU whose pods were asked to leave in vain (gave_up) what is free is given once more.
    Planned MIG devices are not served. gpu_of: MIG device UUID to GPU UUID, for held ids of devices that are
    in no offer.
    """
    live = {
        gpu: tuple(offering for offering in offer if not offering.planned) for gpu, offer in wanted.items()
    }
    loads = _loads({**live, **answerable_offer(serving)}, held, gpu_of)
    for gpu in in_conflict:
        loads.setdefault(gpu, _GpuHolds()).in_conflict = True
    for gpu in gave_up:
        loads.setdefault(gpu, _GpuHolds()).drained_in_vain = True
    steps = {
        gpu: _step(serving.get(gpu), live.get(gpu), loads.get(gpu, _GpuHolds()), now_s, withdraw_s)
        for gpu in {**serving, **live}
    }
    return {gpu: step for gpu, step in steps.items() if step is not None}


def foreign_holds(
    serving: Mapping[GpuUuid, GpuServing], held: HeldIds, gpu_of: Mapping[DeviceUuid, GpuUuid] = _NO_DEVICES
) -> dict[GpuUuid | None, list[Hold]]:
    """GPU UUID to held ids on it that belong to nothing it serves; key None: on no GPU that is known."""
    loads = _loads(answerable_offer(serving), held, gpu_of)
    return {gpu: load.foreign for gpu, load in loads.items() if load.foreign}


def listed_shares(
    serving: Mapping[GpuUuid, GpuServing], held: HeldIds, gpu_of: Mapping[DeviceUuid, GpuUuid] = _NO_DEVICES
) -> dict[ResourceName, list[ListedShare]]:
    """The rows for the kubelet, per resource in the order of ``plugin_resources``; foreign holds last. What
    claims ask for is not among them.

    A resource whose ids are all withdrawn has an empty list; one that is in no offer any more has no key.
    """
    rows: dict[ResourceName, list[ListedShare]] = {}
    for name, resource in plugin_resources(answerable_offer(serving)).items():
        rows[name] = [
            ListedShare(
                name,
                share,
                offering.gpu,
                offering,
                awaited=share in ids and _is_awaited(offering, serving[offering.gpu]),
            )
            for offering in resource.offerings
            for ids in [held.ids.get(name, frozenset[ShareId]())]
            for share in _listed_ids(offering, serving[offering.gpu], ids)
        ]
    for gpu, holds in foreign_holds(serving, held, gpu_of).items():
        for name, share in sorted(hold for hold in holds if hold[0] not in DEVICE_CLASSES):
            rows.setdefault(name, []).append(ListedShare(name, share, gpu, None))
    return rows


def answerable_offer(serving: Mapping[GpuUuid, GpuServing]) -> NodeOffer:
    """All offers for whose ids Allocate is answered, listed or not."""
    return {gpu: (*now.offer, *now.leaving) for gpu, now in serving.items()}


def withdrawn(serving: Mapping[GpuUuid, GpuServing], held: HeldIds) -> frozenset[Hold]:
    """Ids that a GPU serves and does not list: nobody holds them, and no container gets them."""
    return frozenset(
        (offering.resource, share)
        for now in serving.values()
        for offering in (*now.offer, *now.leaving)
        for share in set(offering.share_ids).difference(
            _listed_ids(offering, now, held.ids.get(offering.resource, frozenset()))
        )
    )


def awaited_entries(
    serving: Mapping[GpuUuid, GpuServing],
    entries: Iterable[LedgerEntry],
    gpu_of: Mapping[DeviceUuid, GpuUuid] = _NO_DEVICES,
) -> dict[GpuUuid, tuple[LedgerEntry, ...]]:
    """For every GPU that waits to change: the held ids, with holders, that it waits for.

    Empty tuple: none is held any more, and it waits for withdraw_s.
    """
    moving = {gpu: now for gpu, now in serving.items() if now.draining or now.leaving}
    if not moving:
        return {}
    by_hold = {(entry.resource, entry.id): entry for entry in entries}
    ids: dict[ResourceName, set[ShareId]] = {}
    for resource, share in by_hold:
        ids.setdefault(resource, set()).add(share)
    held = HeldIds({resource: frozenset(some) for resource, some in ids.items()})
    loads = _loads(answerable_offer(serving), held, gpu_of)
    return {
        gpu: tuple(by_hold[hold] for hold in sorted(_waited_for(now, loads.get(gpu, _GpuHolds()))))
        for gpu, now in moving.items()
    }


def next_due_s(serving: Mapping[GpuUuid, GpuServing], withdraw_s: float) -> float | None:
    """When the next step can change something only because time passes; None: never."""
    return min(
        (now.empty_since_s + withdraw_s for now in serving.values() if now.empty_since_s is not None),
        default=None,
    )


# --- one GPU -----------------------------------------------------------------------------------


def _step(
    now: GpuServing | None,
    wanted: GpuOffer | None,
    load: _GpuHolds,
    now_s: float,
    withdraw_s: float,
) -> GpuServing | None:
    if now is None:
        return _start(wanted, load, now_s)
    if wanted is not None and not load.must_end and _fits_in_place(now, wanted):
        return _change_in_place(now, wanted, load, now_s, withdraw_s)
    empty_since_s = None
    if not load.own and not load.foreign:
        empty_since_s = now.empty_since_s if now.draining and now.empty_since_s is not None else now_s
        if now_s - empty_since_s >= withdraw_s:
            return None if wanted is None else GpuServing(wanted)
    since_s = now.draining_since_s if now.draining_since_s is not None else now_s
    offer = (*now.offer, *now.leaving)
    once_more = _once_more(now, offer, load)
    return GpuServing(offer, (), True, since_s, empty_since_s, once_more)


def _once_more(now: GpuServing, waiting: GpuOffer, load: _GpuHolds) -> tuple[Hold, ...] | None:
    """What is given once more of a GPU whose pods were asked to leave in vain: a share of which the holder
    ends is given to nobody else. None once nothing is held: then it changes.
    """
    held = {hold for hold, offering in load.own if offering in waiting}
    if not load.drained_in_vain or load.must_end or not held:
        return None
    free = [(offering.resource, share) for offering in waiting for share in offering.share_ids]
    return tuple(hold for hold in (free if now.once_more is None else now.once_more) if hold not in held)


def _start(wanted: GpuOffer | None, load: _GpuHolds, now_s: float) -> GpuServing | None:
    if wanted is None:
        return None
    if load.must_end:
        return GpuServing((), draining=True, draining_since_s=now_s)
    return GpuServing(wanted)


def _change_in_place(
    now: GpuServing, wanted: GpuOffer, load: _GpuHolds, now_s: float, withdraw_s: float
) -> GpuServing:
    """Take the wanted offer at once; MIG devices that are no longer part of it leave when not held."""
    stay = {offering.device for offering in wanted}
    leaving = tuple(row for row in (*now.offer, *now.leaving) if row.device not in stay)
    if not leaving:
        return GpuServing(wanted)
    empty_since_s = None
    if not any(offering.device not in stay for _, offering in load.own):
        waited = now.empty_since_s is not None and leaving == now.leaving
        empty_since_s = now.empty_since_s if waited else now_s
    if empty_since_s is not None and now_s - empty_since_s >= withdraw_s:
        return GpuServing(wanted)
    once_more = _once_more(now, leaving, load)
    return GpuServing(wanted, leaving, empty_since_s=empty_since_s, once_more=once_more)


def _fits_in_place(now: GpuServing, wanted: GpuOffer) -> bool:
    """Whether no share that may be held is touched: the terms of every device that stays are the same."""
    offered = (*now.offer, *now.leaving)
    old, new = terms_of(offered), terms_of(wanted)
    if any(old[device] != new[device] for device in old.keys() & new.keys()):
        return False
    everything = (*offered, *wanted)
    isolated = all(row.profile is not None for row in everything)
    return old.keys() == new.keys() or (isolated and len({row.strategy for row in everything}) <= 1)


def terms_of(offer: GpuOffer) -> dict[DeviceUuid, set[tuple[object, ...]]]:
    """Per device, what a share of it is.

    Not among it: where the device is found (index, nodes, NUMA node), the length of time slices, which a GPU
    changes under running containers, and rules for new requests (``single``).
    """
    terms: dict[DeviceUuid, set[tuple[object, ...]]] = {}
    for offering in offer:
        share = (
            offering.resource,
            offering.strategy,
            offering.shared,
            offering.replicas,
            offering.first,
            offering.count,
            offering.by_memory,
        )
        promise = (
            offering.memory_bytes,
            offering.threads_percent,
            offering.guarantee,
            offering.guard,
            offering.profile,
            offering.limited,
        )
        terms.setdefault(offering.device, set()).add(share + promise)
    return terms


# --- held ids and their offers --------------------------------------------------------------------


def _loads(
    offers: NodeOffer, held: HeldIds, gpu_of: Mapping[DeviceUuid, GpuUuid]
) -> dict[GpuUuid | None, _GpuHolds]:
    """The held ids of each GPU. The cost depends on the held ids, not on all ids."""
    gpu_of = {**gpu_of, **{gpu: gpu for gpu in offers}}
    loads: dict[GpuUuid | None, _GpuHolds] = defaultdict(_GpuHolds)
    foreign = {resource: set(ids) for resource, ids in held.ids.items()}
    for gpu, rows in offers.items():
        for row in rows:
            gpu_of[row.device] = gpu
            if mine := foreign.get(row.resource, set()) & _ids_of(row):
                loads[gpu].own += [((row.resource, share), row) for share in mine]
                foreign[row.resource] -= mine
    for resource, ids in foreign.items():
        for share in ids:
            where = gpu_of.get(device_of(share))
            loads[where if where in offers else None].foreign.append((resource, share))
    return loads


@lru_cache(maxsize=256)
def _ids_of(row: DeviceOffer) -> frozenset[ShareId]:
    """Cached: every turn asks about the same offers."""
    return frozenset(row.share_ids)


def _is_awaited(offering: DeviceOffer, now: GpuServing) -> bool:
    return now.draining or offering in now.leaving


def _listed_ids(offering: DeviceOffer, now: GpuServing, held: frozenset[ShareId]) -> Iterable[ShareId]:
    if _is_awaited(offering, now):
        more = set(now.once_more or ())
        return [share for share in offering.share_ids if share in held or (offering.resource, share) in more]
    return offering.share_ids


def _waited_for(now: GpuServing, load: _GpuHolds) -> Iterable[Hold]:
    if now.draining:
        return [*(hold for hold, _ in load.own), *load.foreign]
    return [hold for hold, offering in load.own if offering in now.leaving]

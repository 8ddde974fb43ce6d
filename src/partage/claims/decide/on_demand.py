"""GPUs whose MIG devices are made on demand: each place for one is a device, and so is the whole GPU.

All devices of such a GPU use up one counter set, so that the scheduler never gives two that exclude each
other: each memory slice is a counter, and so is whatever else limits the layouts of the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from partage.claims.model.grant import Granted, GrantedShare
from partage.claims.model.slices import Counter, CounterSet, CounterUse
from partage.model.claim import Demands, GpuDemand
from partage.model.geometry import ENGINE_KINDS, Geometry, MigProfile, Placement, ProfileSpec, instance_memory
from partage.model.gpu import Gpu
from partage.model.ids import GPU_CLASS, MIG_CLASS, GpuUuid, planned_uuid
from partage.model.layout import LayoutItem
from partage.model.share import DeviceOffer, Guarantee
from partage.model.strategy import Strategy, Via
from partage.plan.offer.on_demand import foreign_places
from partage.values import Frozen

_OTHER = re.compile(r"[^0-9a-z]")


class PlaceOnDemand(Frozen):
    """A device of a GPU on demand. spec, start: of a MIG device; None and 0: the whole GPU.

    foreign: another MIG device is there, which was not made for a claim.
    """

    gpu: GpuUuid
    geometry: Geometry
    spec: ProfileSpec | None = None
    start: int = 0
    foreign: bool = False

    @property
    def item(self) -> LayoutItem | None:
        """The MIG device, as an item of a layout."""
        return None if self.spec is None else LayoutItem(self.spec.profile, self.start)

    @property
    def placement(self) -> Placement:
        """Its memory slices."""
        size = self.geometry.memory_slices if self.spec is None else self.spec.size
        return Placement(self.start, size)


class PlacedRow(Frozen):
    """name: of the device. row: what is there, or will be (``planned``)."""

    name: str
    place: PlaceOnDemand
    row: DeviceOffer


def devices_on_demand(
    gpu: Gpu, geometry: Geometry, short: str, there: Iterable[DeviceOffer], demand: GpuDemand
) -> Iterator[PlacedRow]:
    """All devices of a GPU, the whole GPU last.

    The scheduler takes the first that fits: so small profiles come before large ones, and of each profile
    those places first that leave most of the others possible. short: the GPU's name. there: what is offered
    of it now.
    """
    foreign = list(foreign_places(gpu, demand))
    by_uuid = {row.device: row for row in there}
    by_item = {
        LayoutItem(MigProfile.parse(device.profile), device.placement.start): by_uuid[device.uuid]
        for device in gpu.mig_devices
        if device.uuid in by_uuid and device.placement is not None
    }
    number = 0
    for spec in sorted(geometry.profiles, key=_smallest_first):
        for start in spec.preferred_starts or spec.starts:
            placement = Placement(start, spec.size)
            place = PlaceOnDemand(gpu.uuid, geometry, spec, start, any(map(placement.overlaps, foreign)))
            planned = _planned(gpu, geometry, place, number)
            number += 1
            item = LayoutItem(spec.profile, start)
            yield PlacedRow(mig_name(short, spec, start), place, by_item.get(item, planned))
    whole = PlaceOnDemand(gpu.uuid, geometry, foreign=bool(foreign))
    yield PlacedRow(short, whole, by_uuid.get(gpu.uuid) or _planned(gpu, geometry, whole, number))


def mig_name(short: str, spec: ProfileSpec, start: int) -> str:
    """``gpu-1b2c3d4e-mig-1g10gb-19-6``."""
    kind = f"-{spec.smi_id}" if spec.smi_id is not None else ""
    return f"{short}-mig-{_OTHER.sub('', str(spec.profile))}{kind}-{start}"


def _smallest_first(spec: ProfileSpec) -> tuple[object, ...]:
    return (spec.size, spec.compute_slices, bool(spec.profile.attributes), str(spec.profile))


def _planned(gpu: Gpu, geometry: Geometry, place: PlaceOnDemand, number: int) -> DeviceOffer:
    """A device that is not there yet."""
    spec = place.spec
    whole = DeviceOffer(
        device=gpu.uuid,
        gpu=gpu.uuid,
        index=str(gpu.index),
        gpu_index=gpu.index,
        resource=GPU_CLASS,
        strategy=Strategy.EXCLUSIVE,
        shared=Strategy.EXCLUSIVE,
        replicas=1,
        memory_bytes=gpu.memory_bytes,
        guarantee=Guarantee.HARD,
        numa_node=gpu.numa_node,
        placement=place.placement,
        via=Via.CLAIMS,
    )
    if spec is None:
        return whole
    return replace(
        whole,
        device=planned_uuid(gpu.uuid, number),
        index=f"{gpu.index}:{number}",
        resource=MIG_CLASS,
        strategy=Strategy.MIG,
        memory_bytes=instance_memory(spec, geometry, gpu.memory_bytes),
        profile=str(spec.profile),
    )


# --- counters ----------------------------------------------------------------------------------


def counter_set(name: str, geometry: Geometry) -> CounterSet:
    """What there is of one GPU. name: of the set, the GPU's."""
    return CounterSet(name, _counters(_totals(geometry)))


def counter_use(name: str, place: PlaceOnDemand) -> CounterUse:
    """What a device uses up. name: of the counter set. The whole GPU uses up everything."""
    totals = _totals(place.geometry)
    if place.spec is None:
        return CounterUse(name, _counters(totals))
    used = _used(place.spec, place.start)
    return CounterUse(name, _counters({key: used[key] for key in totals if used.get(key)}))


def _counters(amounts: Mapping[str, int]) -> dict[str, Counter]:
    return {name: Counter(str(amount)) for name, amount in amounts.items()}


def _totals(geometry: Geometry) -> dict[str, int]:
    """What limits the layouts of a GPU, as ``model.layout.place`` has it: slices, instances, engines; and the
    count of a profile where nothing else says it.
    """
    totals = {f"memory-slice-{number}": 1 for number in range(geometry.memory_slices)}
    totals |= {"compute-slices": geometry.compute_slices, "instances": geometry.max_instances}
    whole = geometry.whole.engines
    for kind in ENGINE_KINDS:
        if count := getattr(whole, kind, None):
            totals[f"{kind}-engines"] = count
    for spec in geometry.profiles:
        if spec.max_count < _most(spec, totals):
            totals[_count_of(spec)] = spec.max_count
    return totals


def _used(spec: ProfileSpec, start: int) -> dict[str, int]:
    used = {f"memory-slice-{number}": 1 for number in Placement(start, spec.size).slices}
    used |= {"compute-slices": spec.compute_slices, "instances": 1, _count_of(spec): 1}
    used |= {f"{kind}-engines": getattr(spec.engines, kind, None) or 0 for kind in ENGINE_KINDS}
    return used


def _count_of(spec: ProfileSpec) -> str:
    kind = "" if spec.smi_id is None else f"-{spec.smi_id}"
    return f"profile-{_OTHER.sub('', str(spec.profile))}{kind}"


def _counter_words(counter: str, spec: ProfileSpec) -> str:
    """``jpeg engines``."""
    if counter == _count_of(spec):
        return f"instances of {spec.profile}"
    return "GPU instances" if counter == "instances" else counter.replace("-", " ")


def _most(spec: ProfileSpec, totals: Mapping[str, int]) -> int:
    """How many of a profile fit side by side, by the counters so far."""
    beside, end = 0, 0
    for start in sorted(spec.starts):
        if start >= end:
            beside, end = beside + 1, start + spec.size
    used = _used(spec, spec.starts[0]) if spec.starts else {}
    amounts = [
        total // used[name]
        for name, total in totals.items()
        if used.get(name) and not name.startswith("memory-slice-")
    ]
    return min([beside, *amounts])


# --- what claims have --------------------------------------------------------------------------


def excluded_by(place: PlaceOnDemand, kept: Iterable[Granted]) -> list[tuple[Granted, GrantedShare]]:
    """What claims have that leaves no room for a device: all of its GPU, or a MIG device in its place."""
    return [
        (granted, share)
        for granted in kept
        for share in granted.shares
        if share.gpu == place.gpu and not share.admin_access and _excludes(share, place)
    ]


def _excludes(share: GrantedShare, place: PlaceOnDemand) -> bool:
    if share.whole or place.spec is None:
        return True
    taken = placement_of(share, place.geometry)
    return taken is not None and taken.overlaps(place.placement)


class Shortage(Frozen):
    """What claims leave too little of for a device. what: a noun phrase. needs, left, total: how much of it
    the device needs, and how much is left of how much. kept: who has of it.
    """

    what: str
    needs: int
    left: int
    total: int
    kept: tuple[tuple[Granted, GrantedShare], ...]


def shortage_for(place: PlaceOnDemand, kept: Iterable[Granted]) -> Shortage | None:
    """What a MIG device that excludes no other one by its place lacks all the same: as the counters have it.
    None: nothing.
    """
    if place.spec is None:
        return None
    totals, wanted = _totals(place.geometry), _used(place.spec, place.start)
    used: dict[str, list[tuple[Granted, GrantedShare, int]]] = {}
    for granted in kept:
        for share in granted.shares:
            if share.gpu != place.gpu or not share.place:
                continue
            item = LayoutItem.parse(share.place)
            if (spec := place.geometry.spec(item.profile)) is not None:
                for name, amount in _used(spec, item.start or 0).items():
                    used.setdefault(name, []).append((granted, share, amount))
    for name, total in totals.items():
        holders = [use for use in used.get(name, ()) if use[2]]
        left = total - sum(amount for _, _, amount in holders)
        if wanted.get(name, 0) > left:
            what = _counter_words(name, place.spec)
            return Shortage(what, wanted[name], left, total, tuple((who, share) for who, share, _ in holders))
    return None


def placement_of(share: GrantedShare, geometry: Geometry) -> Placement | None:
    """Where the MIG device of a share is made; None: it is none that is made on demand."""
    if not share.place:
        return None
    item = LayoutItem.parse(share.place)
    spec = geometry.spec(item.profile)
    return None if spec is None or item.start is None else Placement(item.start, spec.size)


def demands_of(kept: Iterable[Granted], made: Mapping[GpuUuid, Iterable[LayoutItem]]) -> Demands:
    """What claims want of GPUs. made: where MIG devices were made for claims."""
    places: dict[GpuUuid, dict[LayoutItem, None]] = {gpu: dict.fromkeys(items) for gpu, items in made.items()}
    parts: dict[GpuUuid, dict[LayoutItem, None]] = {}
    whole = set()
    for share in (share for granted in kept for share in granted.shares):
        if share.place:
            parts.setdefault(share.gpu, {})[LayoutItem.parse(share.place)] = None
        elif share.whole:
            whole.add(share.gpu)
    gpus = sorted({*places, *parts, *whole})
    return {
        gpu: GpuDemand(gpu in whole, _sorted(parts.get(gpu, ())), _sorted(places.get(gpu, ())))
        for gpu in gpus
    }


def _sorted(items: Iterable[LayoutItem]) -> tuple[LayoutItem, ...]:
    return tuple(sorted(items, key=lambda item: (item.start or 0, str(item.profile))))

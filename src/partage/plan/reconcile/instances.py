"""The GPU instances that exist on one GPU, empty ones included, and which of them are in use; and those that
a layout needs: its compute instances, grouped.

Usually there is one grouping: a GPU instance for every item; items with few compute slices (``1c.3g.40gb``)
fill one instance before the next is opened. If such instances exist already, another grouping may let more of
them stay; then all groupings are returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice, product

from partage.errors import InsufficientResources, PartageError
from partage.model.geometry import Geometry, MigProfile, Placement, ProfileSpec
from partage.model.gpu import Gpu, Inventory, MigDevice
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import GpuUuid, MigUuid
from partage.model.layout import DoesNotFit, LayoutItem, PlacedItem, place
from partage.model.step import CreateCompute, Step
from partage.values import Frozen


class LiveCompute(Frozen):
    """A compute instance that exists, and who uses it."""

    ci_id: int
    uuid: MigUuid
    profile: MigProfile
    users: tuple[GpuUse, ...] = ()


class LiveInstance(Frozen):
    """A GPU instance that exists.

    users: of the GPU instance if it has no compute instance. renew: it must not be reused.
    """

    gi_id: int
    profile: MigProfile
    placement: Placement
    computes: tuple[LiveCompute, ...] = ()
    users: tuple[GpuUse, ...] = ()
    renew: bool = False

    @property
    def busy(self) -> int:
        """How many of its parts are in use."""
        return sum(bool(compute.users) for compute in self.computes) + bool(self.users)

    @property
    def all_users(self) -> tuple[GpuUse, ...]:
        """All users of any part of it."""
        return tuple(
            dict.fromkeys([*self.users, *(use for compute in self.computes for use in compute.users)])
        )


def live_instances(gpu: Gpu, uses: Iterable[GpuUse], renew: Collection[int] = ()) -> tuple[LiveInstance, ...]:
    """The instances on ``gpu``, by first memory slice.

    uses: a use of the whole GPU counts for every instance, because it is not known which one it is.
    Monitors do not count: an instance can be destroyed while they run. renew: ids of GPU instances not to
    be reused.
    """
    tenants = [use for use in uses if use.gpu == gpu.uuid and use.kind is not UseKind.MONITOR]
    devices: dict[int, list[MigDevice]] = defaultdict(list)
    for device in gpu.mig_devices:
        devices[device.gi_id].append(device)
    filled = [_filled(gi_id, group, tenants, gi_id in renew) for gi_id, group in devices.items()]
    empty = [
        LiveInstance(
            instance.gi_id,
            MigProfile.parse(instance.profile),
            instance.placement,
            users=tuple(use for use in tenants if use.whole or use.gi_id == instance.gi_id),
            renew=instance.gi_id in renew,
        )
        for instance in gpu.empty_instances
        if instance.gi_id not in devices
    ]
    return tuple(sorted([*filled, *empty], key=lambda instance: instance.placement))


def to_renew(inventory: Inventory, step: Step, error: PartageError) -> dict[GpuUuid, frozenset[int]]:
    """The GPU instance in which the driver could not place a compute instance, as ``renew`` of a plan.

    A larger compute instance needs adjacent free compute slices, and existing ones cannot be moved.
    Empty if the step failed for another reason, or if the GPU instance no longer exists.
    """
    if not isinstance(step, CreateCompute) or not isinstance(error, InsufficientResources):
        return {}
    gpu = inventory.gpu(step.gpu)
    place = (step.instance, step.placement)
    found = {
        instance.gi_id
        for instance in (live_instances(gpu, ()) if gpu is not None else ())
        if (str(instance.profile), instance.placement) == place
    }
    return {step.gpu: frozenset(found)} if found else {}


def _filled(gi_id: int, devices: list[MigDevice], tenants: Iterable[GpuUse], renew: bool) -> LiveInstance:
    computes = tuple(
        LiveCompute(
            device.ci_id,
            device.uuid,
            MigProfile.parse(device.profile),
            tuple(use for use in tenants if use.whole or use.is_of(use.gpu, device)),
        )
        for device in sorted(devices, key=lambda device: device.ci_id)
    )
    return LiveInstance(
        gi_id, computes[0].profile.gpu_instance, devices[0].known_placement, computes, renew=renew
    )


_MOST = 200
"""Groupings that are tried. More than any GPU has: six 1c in two 3g are 4, six in three 2g are 1."""


class WantedInstance(Frozen):
    """A GPU instance that a layout needs.

    computes: slices of its compute instances, descending. start: its first memory slice, if fixed.
    """

    spec: ProfileSpec
    computes: tuple[int, ...]
    start: int | None = None


def wanted_instances(placed: Iterable[PlacedItem]) -> tuple[WantedInstance, ...]:
    """The grouping that ``place`` makes."""
    members: dict[int, list[PlacedItem]] = defaultdict(list)
    for item in placed:
        members[item.instance].append(item)
    return tuple(
        WantedInstance(
            group[0].spec,
            _descending(placed_item.item.profile.compute_slices for placed_item in group),
            next(
                (placed_item.item.start for placed_item in group if placed_item.item.start is not None), None
            ),
        )
        for _, group in sorted(members.items())
    )


def groupings(
    geometry: Geometry, placed: Sequence[PlacedItem], live: Collection[MigProfile]
) -> Iterator[tuple[WantedInstance, ...]]:
    """All groupings; first that of ``place``.

    placed: its answer for the whole layout. live: profiles of the GPU instances that exist; only for those
    can another grouping be better.
    """
    usual = wanted_instances(placed)
    yield usual
    split = {instance.spec.profile for instance in usual if _is_split(instance)} & set(live)
    if not split:
        return
    rest = tuple(instance for instance in usual if instance.spec.profile not in split)
    fillings = [
        list(_fillings([item for item in placed if item.spec.profile == name])) for name in sorted(split)
    ]
    for chosen in islice(product(*fillings), _MOST):
        bundles = (*rest, *(instance for filling in chosen for instance in filling))
        if _possible(geometry, bundles):
            yield bundles


def _is_split(instance: WantedInstance) -> bool:
    return instance.computes != (instance.spec.compute_slices,)


def _possible(geometry: Geometry, bundles: Iterable[WantedInstance]) -> bool:
    try:
        place(geometry, [LayoutItem(bundle.spec.profile, bundle.start) for bundle in bundles])
    except DoesNotFit:
        return False
    return True


def _fillings(items: Sequence[PlacedItem]) -> Iterator[tuple[WantedInstance, ...]]:
    """All groupings of the items of one GPU instance profile, fewest instances first."""
    spec = items[0].spec
    fixed: dict[int, list[int]] = defaultdict(list)
    loose: list[int] = []
    for item in items:
        (loose if item.item.start is None else fixed[item.item.start]).append(
            item.item.profile.compute_slices
        )
    fixed_bins = tuple(sorted((start, _descending(sizes)) for start, sizes in fixed.items()))
    fillings: set[tuple[_Bin, ...]] = {fixed_bins}
    for size in sorted(loose, reverse=True):
        fillings = {more for filling in fillings for more in _with(filling, size, spec)}
    for filling in sorted(
        fillings, key=lambda bins: (len(bins), [(-sum(sizes), start) for start, sizes in bins])
    ):
        yield tuple(WantedInstance(spec, sizes, start if start >= 0 else None) for start, sizes in filling)


_Bin = tuple[int, tuple[int, ...]]
"""Start, -1 where it is free, and slices of the compute instances."""


def _with(filling: tuple[_Bin, ...], size: int, spec: ProfileSpec) -> Iterator[tuple[_Bin, ...]]:
    for at, (start, sizes) in enumerate(filling):
        if sum(sizes) + size <= spec.compute_slices:
            fuller = (start, _descending((*sizes, size)))
            yield tuple(sorted((*filling[:at], fuller, *filling[at + 1 :])))
    if len(filling) < spec.max_count:
        yield tuple(sorted((*filling, (-1, (size,)))))


def _descending(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(sizes, reverse=True))

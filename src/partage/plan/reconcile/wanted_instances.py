"""The GPU instances that a layout needs: its compute instances, grouped.

Usually there is one grouping: a GPU instance for every item; items with few compute slices (``1c.3g.40gb``)
fill one instance before the next is opened. If such instances exist already, another grouping may let more of
them stay; then all groupings are returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice, product

from partage.model.geometry import Geometry, MigProfile, ProfileSpec
from partage.model.layout import DoesNotFit, LayoutItem, PlacedItem, place
from partage.values import Frozen

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

"""The places in which new GPU instances can be created, and which existing ones must be destroyed for them;
and the layouts to which none can be added.

Everything is enumerated: a GPU has at most a few thousand layouts, and GPUs of one model share the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from operator import le, sub

from partage.model.geometry import ENGINE_KINDS, Geometry, MigProfile, ProfileSpec
from partage.model.layout import LayoutItem
from partage.packing.decide.candidates import CandidateInstance
from partage.values import Answer, Frozen

Amounts = tuple[int, ...]
"""Amounts of everything that is limited on a GPU: compute slices, instances, engines, and each profile."""

Quota = tuple[tuple[MigProfile, int], ...]
"""How many new GPU instances of which profile can be useful."""


class NewInstance(Frozen):
    """A GPU instance that could be created."""

    spec: ProfileSpec
    start: int
    mask: int
    needs: Amounts


class NewInstances(Frozen, eq=False):
    """GPU instances that could be opened together, the largest first. needs, mask: of all of them.

    Equal only to itself, and made once: GPUs of one model share these sets.
    """

    instances: tuple[NewInstance, ...]
    mask: int
    needs: Amounts

    @property
    def kinds(self) -> tuple[MigProfile, ...]:
        """What is opened, wherever it sits."""
        return tuple(new.spec.profile for new in self.instances)


def openings(
    geometry: Geometry, live: Sequence[CandidateInstance], quota: Quota
) -> dict[int, list[NewInstances]]:
    """Every way to create GPU instances, by the live instances that must be destroyed (bit n: position n).

    Of the ways that create the same instances only those are included that destroy no more than another
    one; of ways that differ only in starts, the one with the preferred starts.
    """
    limits, needs = _budgets(geometry)
    takes = [needs[instance.spec.profile] for instance in live]
    masks = [_mask(instance.start, instance.spec.size) for instance in live]
    held = [position for position, instance in enumerate(live) if instance.held]
    loose = [position for position, instance in enumerate(live) if not instance.held]
    left = _less(limits, (takes[position] for position in held))
    taken = sum(masks[position] for position in held)

    @cache
    def overlapped(mask: int) -> int:
        return sum(1 << position for position in loose if masks[position] & mask)

    @cache
    def kept_beside(removed: int) -> tuple[dict[int, Amounts], Amounts]:
        kept = {position: takes[position] for position in loose if not removed >> position & 1}
        return kept, _less(left, kept.values())

    by_removed: dict[int, list[NewInstances]] = {}
    for same_profiles in new_instances_of(geometry, quota):
        needed = same_profiles[0].needs
        if not all(map(le, needed, left)):
            continue
        ways: dict[int, NewInstances] = {}
        tried = set()
        for new_instances in same_profiles:
            forced = overlapped(new_instances.mask)
            if new_instances.mask & taken or forced in tried:
                continue
            tried.add(forced)
            kept, room = kept_beside(forced)
            if all(map(le, needed, room)):
                _add_least(ways, forced, new_instances)
                continue
            for more in _removals(kept, _less(left, (needed,))):
                _add_least(ways, forced | more, new_instances)
        for removed, new_instances in ways.items():
            by_removed.setdefault(removed, []).append(new_instances)
    return by_removed


def _add_least(ways: dict[int, NewInstances], removed: int, new_instances: NewInstances) -> None:
    """Add it unless another one destroys less; remove those that destroy more."""
    if any(other & removed == other for other in ways):
        return
    for other in [other for other in ways if other & removed == removed]:
        del ways[other]
    ways[removed] = new_instances


@lru_cache(maxsize=64)
def new_instances_of(geometry: Geometry, quota: Quota) -> tuple[tuple[NewInstances, ...], ...]:
    """Every set of GPU instances on an empty GPU, none included; equal profiles together, preferred starts
    first.
    """
    limits, needs = _budgets(geometry)
    wanted = dict(quota)
    instances = sorted(
        (
            NewInstance(spec, start, _mask(start, spec.size), needs[spec.profile])
            for spec in geometry.profiles
            if wanted.get(spec.profile)
            for start in spec.starts
        ),
        key=lambda new: new.start,
    )
    by_kinds: dict[tuple[MigProfile, ...], list[NewInstances]] = {}
    for chosen, room in _grown(instances, 0, limits, wanted):
        new_instances = NewInstances(
            _ordered(chosen), sum(new.mask for new in chosen), _less(limits, (room,))
        )
        by_kinds.setdefault(new_instances.kinds, []).append(new_instances)
    return tuple(
        tuple(sorted(same_profiles, key=lambda one: tuple(_rank(new) for new in one.instances)))
        for same_profiles in by_kinds.values()
    )


def _grown(
    instances: Sequence[NewInstance], taken: int, left: Amounts, quota: dict[MigProfile, int]
) -> Iterator[tuple[tuple[NewInstance, ...], Amounts]]:
    """Every set of instances without overlap within the budgets, and what is left of the budgets."""
    yield (), left
    for position, new in enumerate(instances):
        profile = new.spec.profile
        if new.mask & taken or not quota[profile]:
            continue
        room = _less(left, (new.needs,))
        if min(room) < 0:
            continue
        smaller = {**quota, profile: quota[profile] - 1}
        for rest, leaves in _grown(instances[position + 1 :], taken | new.mask, room, smaller):
            yield (new, *rest), leaves


def _removals(kept: dict[int, Amounts], room: Amounts) -> frozenset[int]:
    """The sets of kept instances that must be destroyed because all together exceed the budgets."""
    left = _less(room, kept.values())
    short = next((thing for thing, amount in enumerate(left) if amount < 0), None)
    if short is None:
        return frozenset({0})
    return frozenset(
        rest | 1 << gone
        for gone, needs in kept.items()
        if needs[short]
        for rest in _removals({position: kept[position] for position in kept if position != gone}, room)
    )


@cache
def _budgets(geometry: Geometry) -> tuple[Amounts, dict[MigProfile, Amounts]]:
    """What the GPU has, and what an instance of each profile needs."""
    whole = geometry.whole.engines
    kinds = [kind for kind in ENGINE_KINDS if whole is not None and getattr(whole, kind) is not None]
    engines = tuple(getattr(whole, kind) for kind in kinds)
    counts = tuple(spec.max_count for spec in geometry.profiles)
    needs = {
        spec.profile: (
            spec.compute_slices,
            1,
            *(getattr(spec.engines, kind, None) or 0 for kind in kinds),
            *(int(other is spec) for other in geometry.profiles),
        )
        for spec in geometry.profiles
    }
    return (geometry.compute_slices, geometry.max_instances, *engines, *counts), needs


def _ordered(instances: Iterable[NewInstance]) -> tuple[NewInstance, ...]:
    """Largest first, the order in which placing by preferred starts takes them."""
    return tuple(
        sorted(
            instances,
            key=lambda new: (-new.spec.size, -new.spec.compute_slices, new.spec.profile, _rank(new)),
        )
    )


def _rank(new: NewInstance) -> int:
    return new.spec.preferred_starts.index(new.start)


def _less(amounts: Amounts, taken: Iterable[Amounts]) -> Amounts:
    for some in taken:
        amounts = tuple(map(sub, amounts, some))
    return amounts


def _mask(start: int, size: int) -> int:
    return ((1 << size) - 1) << start


class MaximalLayout(Answer):
    """A layout to which nothing can be added. layout: with starts. ways: number of placements."""

    profiles: Mapping[str, int]
    layout: tuple[str, ...]
    ways: int


def maximal_layouts(geometry: Geometry) -> tuple[MaximalLayout, ...]:
    """All of them, each set of profiles once: layouts with larger instances first."""
    quota = tuple((spec.profile, spec.max_count) for spec in geometry.profiles)
    by_kinds = {ways[0].kinds: ways for ways in new_instances_of(geometry, quota)}
    counts = {kinds: Counter(kinds) for kinds in by_kinds}
    maximal = [kinds for kinds in by_kinds if not any(counts[kinds] < other for other in counts.values())]
    sizes = {spec.profile: (spec.size, spec.compute_slices) for spec in geometry.profiles}
    maximal.sort(
        key=lambda kinds: [(*sizes[kind], not kind.attributes, kind.gigabytes) for kind in kinds],
        reverse=True,
    )
    return tuple(_layout(counts[kinds], by_kinds[kinds]) for kinds in maximal)


def _layout(counts: Mapping[MigProfile, int], ways: Sequence[NewInstances]) -> MaximalLayout:
    """The layout of these profiles, with the starts that placing prefers. ways: all placements of it."""
    instances = sorted(ways[0].instances, key=lambda new: new.start)
    return MaximalLayout(
        {str(profile): counts[profile] for profile in sorted(counts, reverse=True)},
        tuple(str(LayoutItem(new.spec.profile, new.start)) for new in instances),
        len(ways),
    )

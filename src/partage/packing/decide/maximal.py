"""The MIG layouts of one GPU model to which no instance can be added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from partage.model.geometry import Geometry
from partage.model.layout import LayoutItem
from partage.model.profile import MigProfile
from partage.packing.decide.openings import NewInstances, new_instances_of
from partage.values import Answer


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
        key=lambda kinds: [(*sizes[one], not one.attributes, one.gigabytes) for one in kinds], reverse=True
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

"""The MIG layouts of one GPU model to which no instance can be added."""

from __future__ import annotations

from collections import Counter

from partage.model.geometry import Geometry
from partage.model.layout import LayoutItem
from partage.packing.decide.openings import new_instances_of
from partage.values import Frozen


class MaximalLayout(Frozen):
    """GPU instances to which none can be added, wherever they are.

    items: with the starts that placing prefers, ordered by start. ways: number of placements of them.
    """

    items: tuple[LayoutItem, ...]
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
    return tuple(
        MaximalLayout(
            tuple(
                sorted(
                    (LayoutItem(new.spec.profile, new.start) for new in by_kinds[kinds][0].instances),
                    key=lambda item: item.start or 0,
                )
            ),
            len(by_kinds[kinds]),
        )
        for kinds in maximal
    )

"""The best placement of a layout on a GPU that has instances already, so that most of them stay.

Priorities, in this order: no instance in use is lost; most MIG devices stay; fewest GPU instances; most
memory slices below devices that stay; most GPU instances reused (empty ones included); lowest starts. The
search is complete. It goes along the memory slices: at each one the live instance stays, another one
begins, or none begins. What can follow depends only on the slice and on the instances still to place, so
each such state is solved once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from msgspec.structs import replace

from partage.model.geometry import Geometry, MigProfile, Placement
from partage.model.layout import LayoutItem, place
from partage.plan.reconcile.instances import (
    LiveCompute,
    LiveInstance,
    WantedInstance,
    groupings,
    wanted_instances,
)
from partage.values import Frozen


class PlannedInstance(Frozen):
    """A GPU instance of the layout and its place. live: the reused instance; None: a new one."""

    wanted: WantedInstance
    placement: Placement
    live: LiveInstance | None = None

    @property
    def kept(self) -> tuple[LiveCompute, ...]:
        """Compute instances that stay; those in use first, then the lowest ids."""
        return _kept(self.live, self.wanted) if self.live else ()

    @property
    def removed(self) -> tuple[LiveCompute, ...]:
        """Compute instances of the reused GPU instance that must be destroyed."""
        kept = {compute.ci_id for compute in self.kept}
        return (
            tuple(compute for compute in self.live.computes if compute.ci_id not in kept) if self.live else ()
        )

    @property
    def missing(self) -> tuple[MigProfile, ...]:
        """Compute instances to create, largest first, so that each finds room in the GPU instance."""
        left = list(self.devices)
        for compute in self.kept:
            left.remove(_named(self.wanted, compute.profile.compute_slices))
        return tuple(left)

    @property
    def devices(self) -> tuple[MigProfile, ...]:
        """The MIG devices that it will have, largest first."""
        return tuple(_named(self.wanted, slices) for slices in self.wanted.computes)


def _named(instance: WantedInstance, slices: int) -> MigProfile:
    """The profile of a compute instance with this many slices (the ``g`` of a profile)."""
    return replace(instance.spec.profile, compute_slices=slices)


class PlacedLayout(Frozen):
    """A placed layout, by first memory slice. lost: number of users that lose their instance."""

    instances: tuple[PlannedInstance, ...]
    lost: int = 0


def best_placement(
    geometry: Geometry, items: Sequence[LayoutItem], live: Sequence[LiveInstance]
) -> PlacedLayout:
    """The best placement of ``items``. Raises DoesNotFit if even an empty GPU has no room for them."""
    placed = place(geometry, items)
    if not live:
        starts = {item.instance: item.placement for item in placed}
        instances = [
            PlannedInstance(instance, starts[number])
            for number, instance in enumerate(wanted_instances(placed))
        ]
        return PlacedLayout(tuple(instances))
    found = [
        (_first(answer.score, len(bundles)), -at, search, answer)
        for at, bundles in enumerate(groupings(geometry, placed, {instance.profile for instance in live}))
        if (answer := (search := _PlacementSearch(geometry, bundles, live)).best())
    ]
    _, _, search, answer = max(found, key=lambda one: one[:2])
    return PlacedLayout(search.instances(answer), -answer.score[0])


Score = tuple[int, int, int, int]
"""Users lost (negative), MIG devices that stay, memory slices under them, GPU instances reused."""


class _Partial(NamedTuple):
    """The best placement from one slice on; the greatest is the best.

    starts: of the GPU instances, negative, as the lowest win. kinds: minus the number of the kind, and the
    position of the live instance that is reused or -1, for each of them.
    """

    score: Score
    starts: tuple[int, ...]
    kinds: tuple[tuple[int, int], ...]


_DONE = _Partial((0, 0, 0, 0), (), ())


class _PlacementSearch:
    """The search for one grouping of compute instances."""

    def __init__(
        self, geometry: Geometry, bundles: Sequence[WantedInstance], live: Sequence[LiveInstance]
    ) -> None:
        counts = Counter(bundles)
        self._kinds = sorted(counts, key=_rank)
        self._wanted = tuple(counts[kind] for kind in self._kinds)
        self._sizes = tuple(kind.spec.size for kind in self._kinds)
        self._live = tuple(live)
        self._at = {instance.placement.start: position for position, instance in enumerate(live)}
        self._end = max([geometry.memory_slices, *(instance.placement.slices.stop for instance in live)])
        self._known: dict[tuple[int, tuple[int, ...]], _Partial | None] = {}
        self._offers: dict[int, list[tuple[Score, int] | None]] = {}

    def best(self) -> _Partial | None:
        """None: the GPU instances do not fit side by side."""
        return self._from(0, self._wanted)

    def instances(self, answer: _Partial) -> tuple[PlannedInstance, ...]:
        """The planned instances of an answer."""
        return tuple(
            PlannedInstance(kind, Placement(-start, kind.spec.size), self._live[live] if live >= 0 else None)
            for start, (number, live) in zip(answer.starts, answer.kinds, strict=True)
            for kind in [self._kinds[-number]]
        )

    def _from(self, at: int, left: tuple[int, ...]) -> _Partial | None:
        if sum(map(mul, left, self._sizes)) > self._end - at:
            return None
        if at >= self._end:
            return _DONE
        state = (at, left)
        if state not in self._known:
            self._known[state] = self._solve(at, left)
        return self._known[state]

    def _solve(self, at: int, left: tuple[int, ...]) -> _Partial | None:
        found = [self._skip(at, left)]
        for number, kind in enumerate(self._kinds):
            if left[number] and kind.start in (None, at) and (option := self._options(at)[number]):
                score, live = option
                rest = self._from(
                    at + kind.spec.size, (*left[:number], left[number] - 1, *left[number + 1 :])
                )
                if rest:
                    starts, kinds = (-at, *rest.starts), ((-number, live), *rest.kinds)
                    found.append(_Partial(_sum(score, rest.score), starts, kinds))
        return max((answer for answer in found if answer), default=None)

    def _skip(self, at: int, left: tuple[int, ...]) -> _Partial | None:
        """No GPU instance begins here."""
        rest = self._from(at + 1, left)
        lost = self._lost(at, at + 1)
        return rest._replace(score=_sum(rest.score, (-lost, 0, 0, 0))) if rest and lost else rest

    def _options(self, at: int) -> list[tuple[Score, int] | None]:
        """For each kind that begins at a slice: its score, and the live instance that is reused, or -1."""
        if at not in self._offers:
            self._offers[at] = [self._option(kind, at) for kind in self._kinds]
        return self._offers[at]

    def _option(self, kind: WantedInstance, at: int) -> tuple[Score, int] | None:
        position = self._at.get(at, -1)
        if position >= 0 and _serves(self._live[position], kind):
            return _gain(self._live[position], kind), position
        if at not in kind.spec.starts:
            return None
        return (-self._lost(at, at + kind.spec.size), 0, 0, 0), -1

    def _lost(self, start: int, stop: int) -> int:
        """Users of the live instances that begin in these slices."""
        return sum(self._live[self._at[at]].busy for at in range(start, stop) if at in self._at)


def _sum(a: Score, b: Score) -> Score:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])


def _first(score: Score, instances: int) -> tuple[int, ...]:
    """The score of a whole placement, with the number of its GPU instances at third position."""
    return (score[0], score[1], -instances, score[2], score[3])


def _rank(kind: WantedInstance) -> tuple[object, ...]:
    """Of two that could begin at the same slice, the larger one is tried first."""
    fixed = -1 if kind.start is None else kind.start
    return (-kind.spec.size, -kind.spec.compute_slices, kind.spec.profile, kind.computes, fixed)


def _serves(live: LiveInstance, kind: WantedInstance) -> bool:
    reusable = bool(live.busy) or not live.renew
    return reusable and live.profile == kind.spec.profile and live.placement.size == kind.spec.size


def _gain(live: LiveInstance, kind: WantedInstance) -> Score:
    kept = _kept(live, kind)
    lost = sum(bool(compute.users) for compute in live.computes) - sum(
        bool(compute.users) for compute in kept
    )
    return (-lost, len(kept), live.placement.size if kept else 0, 1)


def _kept(live: LiveInstance, kind: WantedInstance) -> tuple[LiveCompute, ...]:
    left = Counter(kind.computes)
    kept = []
    for compute in sorted(
        live.computes, key=lambda live_compute: (not live_compute.users, live_compute.ci_id)
    ):
        if left[compute.profile.compute_slices] > 0:
            left[compute.profile.compute_slices] -= 1
            kept.append(compute)
    return tuple(kept)

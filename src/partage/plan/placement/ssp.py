"""SSP, slot and stranding potential: how much a pod on a node spoils for the pods that are still to come."""

from __future__ import annotations

from collections.abc import Mapping

from partage.plan.placement.fragments import Fragments
from partage.plan.placement.mix import WHOLE_MILLI, Mix, PodType, Slots, prices
from partage.plan.placement.room import GpuIndexes, Room, choices, first_fit, without
from partage.plan.placement.waste import WasteTable, waste_tables
from partage.values import Frozen

_SLOT_WEIGHT = 0.8
_OPEN = 15.0
"""Milli that it costs to begin an unused node of eight GPUs."""
_CPU_ONLY = 1e-6


class SspWay(Frozen):
    """What of the scores can be tuned. fragments: which part of the potential is FGD's measure, 0 to 1.
    price: how much the price of a model counts.
    """

    fragments: float = 0.0
    price: float = 0.5


PUBLISHED = SspWay()
"""With the check values of our study."""


class Ssp:
    """Scores of nodes, the higher the better. exact: it also chooses the GPU; else the allocator's first fit
    is what the node will do.
    """

    def __init__(
        self,
        mix: Mix,
        supply: Mapping[str, int],
        *,
        exact: bool,
        priced: Mix | None = None,
        way: SspWay = PUBLISHED,
        tables: Mapping[str, WasteTable] | None = None,
    ) -> None:
        """supply: milli of each GPU model in the cluster. priced: the mix by which models are priced, where
        ``mix`` has one pod several times, as different amounts of different models. tables: of the mix, if
        they are known. It takes a second or a few.
        """
        self.way = way
        self._tables = waste_tables(mix, list(supply)) if tables is None else tables
        self._fragments = Fragments(mix)
        self._slots = mix.slots
        self._prices = prices(mix if priced is None else priced, supply)
        self._exact = exact
        self._known: dict[tuple[str, tuple[int, ...], int], float] = {}

    def best(self, pod: PodType, room: Room) -> tuple[float, GpuIndexes]:
        """The score of a node where the pod fits, and the GPUs there."""
        if not pod.gpus and not any(room.left):
            return -_CPU_ONLY * room.cpu_milli, ()
        left = tuple(room.left)
        before = self.potential(room.model, left, room.cpu_milli)
        cpu_milli = room.cpu_milli - pod.cpu_milli
        found = choices(pod, left) if self._exact else (first_fit(pod, left),)
        score, gpus = max(
            (
                (before - self.potential(room.model, without(pod, left, gpus), cpu_milli), gpus)
                for gpus in found
            ),
            key=lambda scored: scored[0],
        )
        if room.unused:
            score -= _OPEN * len(left) / 8
        return score - self.way.price * self._prices.get(room.model, 0.0) * pod.demand, gpus

    def potential(self, model: str, left: tuple[int, ...], cpu_milli: int) -> float:
        """Milli of the node's GPUs that are expected to be wasted. left: of each GPU."""
        key = model, left, cpu_milli
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._potential(*key)
        return known

    def _potential(self, model: str, left: tuple[int, ...], cpu_milli: int) -> float:
        table = self._tables[model]
        wasted = sum(map(table.of_hole, left))
        total = sum(left)
        stranded = table.of_cpu(total - wasted, cpu_milli)
        free = left.count(WHOLE_MILLI)
        slots = sum(_no_slots(row, total, free, cpu_milli) for row in self._slots if _fits(row, model, left))
        spoilt = wasted + stranded + _SLOT_WEIGHT * slots
        if not (part := self.way.fragments):
            return spoilt
        return (1 - part) * spoilt + part * self._fragments.of(model, left, cpu_milli)


_MOST_KNOWN = 200_000


def _fits(row: Slots, model: str, left: tuple[int, ...]) -> bool:
    return row.gpus <= len(left) and (not row.models or model in row.models)


def _no_slots(row: Slots, total: int, free: int, cpu_milli: int) -> float:
    """Milli that pods of several GPUs cannot get, weighed by how often they come."""
    slots = free // row.gpus
    if row.cpu_milli:
        slots = min(slots, int(cpu_milli // row.cpu_milli))
    return row.part * (total - WHOLE_MILLI * row.gpus * slots)

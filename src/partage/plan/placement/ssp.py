"""SSP, slot and stranding potential: how much a pod on a node spoils for the pods that are still to come.

First what will be wasted of a GPU and of a node for a mix of pods: a table for each GPU model. Making them
takes about a second for each group of models that the same pods may have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from partage.plan.placement.baselines import Fragments
from partage.plan.placement.mix import WHOLE_MILLI, Mix, PodType, Slots, prices
from partage.plan.placement.room import GpuIndexes, Room, choices, first_fit, without
from partage.values import Frozen

if TYPE_CHECKING:
    import numpy as np


HOLE_STEP, _HOLES = 10, 101
"""Holes are counted in steps of ten milli, from 0 to a whole GPU."""
_ROUNDS = 24
GPU_STEP, CPU_STEP = 250, 1000
"""Steps of the table of stranded GPUs: usable milli of GPUs, and milli of CPU."""
_GPU_STEPS, _CPU_STEPS = 33, 131
_SEQUENCES, _LENGTH = 300, 30
_CPU_ONLY_WEIGHT = 0.3


class WasteTable(Frozen):
    """holes: milli finally wasted of a GPU of which n * HOLE_STEP are left. stranded: milli of GPUs that stay
    unused for want of CPU, by steps of usable milli of GPUs and of CPU left.
    """

    holes: tuple[float, ...]
    stranded: tuple[tuple[float, ...], ...]

    def of_hole(self, left: int) -> float:
        """left: milli of a GPU."""
        return self.holes[left // HOLE_STEP]

    def of_cpu(self, usable: float, cpu_milli: int) -> float:
        """Between the steps, in both directions. usable: milli of GPUs that are left and no waste yet."""
        row = min(max(usable, 0.0) / GPU_STEP, _GPU_STEPS - 1 - 0.001)
        column = min(cpu_milli / CPU_STEP, _CPU_STEPS - 1 - 0.001)
        i, j = int(row), int(column)
        down, across = row - i, column - j
        above, below = self.stranded[i], self.stranded[i + 1]
        return (1 - down) * ((1 - across) * above[j] + across * above[j + 1]) + down * (
            (1 - across) * below[j] + across * below[j + 1]
        )


def waste_tables(mix: Mix, models: Sequence[str]) -> dict[str, WasteTable]:
    """The table of each model; models that the same pods may have share one."""
    without_gpus = tuple(mix.without_gpus.items())
    return {model: _waste_table(tuple(mix.single(model).items()), without_gpus) for model in models}


@lru_cache(maxsize=32)
def _waste_table(
    single: tuple[tuple[PodType, float], ...], without_gpus: tuple[tuple[PodType, float], ...]
) -> WasteTable:
    """Remembered: it takes long, and each policy and each replay asks for that of the same mix."""
    return WasteTable(_holes(dict(single)), _stranded(dict(single), dict(without_gpus)))


def _holes(single: Mapping[PodType, float]) -> tuple[float, ...]:
    """A pod that fits makes the hole smaller, one that does not leaves it as it is; again and again."""
    sizes: dict[int, float] = {}
    for pod, part in single.items():
        size = -(-pod.milli // HOLE_STEP)
        sizes[size] = sizes.get(size, 0.0) + part
    total = sum(sizes.values())
    wasted = [float(HOLE_STEP * hole) for hole in range(_HOLES)]
    if not total:
        return tuple(wasted)
    for _ in range(_ROUNDS):
        wasted = [
            sum(part * wasted[hole - size if size <= hole else hole] for size, part in sizes.items()) / total
            for hole in range(_HOLES)
        ]
    return tuple(wasted)


def _stranded(
    single: Mapping[PodType, float], without_gpus: Mapping[PodType, float]
) -> tuple[tuple[float, ...], ...]:
    """Random sequences of pods, each of which is taken if it fits: how much more of the GPUs stays unused
    than with CPU without end. Pods without GPUs weigh less: they can go elsewhere.
    """
    import numpy as np

    types = [*single, *without_gpus]
    weights = np.array([*single.values(), *(_CPU_ONLY_WEIGHT * part for part in without_gpus.values())])
    zero = (0.0,) * _CPU_STEPS
    if not single:
        return (zero,) * _GPU_STEPS
    drawn = np.random.default_rng(0).choice(len(types), size=(_LENGTH, _SEQUENCES), p=weights / weights.sum())
    milli = np.array([pod.demand for pod in types])[drawn]
    cpu = np.array([pod.cpu_milli for pod in types])[drawn]
    gpu_left = np.arange(_GPU_STEPS) * GPU_STEP
    limited = _left(milli, cpu, gpu_left, np.arange(_CPU_STEPS) * CPU_STEP)
    endless = _left(milli, np.zeros_like(cpu), gpu_left, np.zeros(1, dtype=cpu.dtype))
    rows = np.maximum(limited - endless, 0.0)
    rows[0] = 0.0
    return tuple(tuple(map(float, row)) for row in rows)


def _left(milli: np.ndarray, cpu: np.ndarray, gpu_steps: np.ndarray, cpu_steps: np.ndarray) -> np.ndarray:
    """Mean milli of GPUs left, by step of GPUs and of CPU. milli, cpu: of each pod, then of each sequence."""
    import numpy as np

    shape = (milli.shape[1], len(gpu_steps), len(cpu_steps))
    gpu_left = np.broadcast_to(gpu_steps[None, :, None], shape).astype(np.int32)
    cpu_left = np.broadcast_to(cpu_steps[None, None, :], shape).astype(np.int32)
    for of_gpu, of_cpu in zip(milli.astype(np.int32), cpu.astype(np.int32), strict=True):
        taken = (of_gpu[:, None, None] <= gpu_left) & (of_cpu[:, None, None] <= cpu_left)
        gpu_left -= taken * of_gpu[:, None, None]
        cpu_left -= taken * of_cpu[:, None, None]
    mean: np.ndarray = gpu_left.mean(axis=0)
    return mean


assert HOLE_STEP * (_HOLES - 1) == WHOLE_MILLI


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

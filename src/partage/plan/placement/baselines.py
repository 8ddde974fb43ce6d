"""Published policies, to compare with: best fit, and fragmentation gradient descent (FGD, ATC'23)."""

from __future__ import annotations

from math import exp

from partage.plan.placement.fragments import Fragments
from partage.plan.placement.mix import WHOLE_MILLI, Mix, PodType
from partage.plan.placement.room import GpuIndexes, Room, choices, first_fit, without

_CPU_SCALE, _GPU_SCALE = 128_000, 8 * WHOLE_MILLI


class BestFit:
    """The node with the least CPU and GPUs left after the pod; on it, the GPU with the least."""

    def best(self, pod: PodType, room: Room) -> tuple[float, GpuIndexes]:
        """The score of a node where the pod fits, and the GPUs there."""
        cpu = (room.cpu_milli - pod.cpu_milli) / _CPU_SCALE
        gpu = (sum(room.left) - pod.demand) / _GPU_SCALE
        gpus = min(choices(pod, room.left), key=lambda gpus: sum(room.left[index] for index in gpus))
        return int(100 * (1 - cpu / 2 - gpu / 2)), gpus


class EmptiestFirst:
    """The node with the most CPU and GPUs left after the pod; on it the first GPUs with enough left."""

    def best(self, pod: PodType, room: Room) -> tuple[float, GpuIndexes]:
        """The score of a node where the pod fits, and the GPUs there."""
        return -BestFit().best(pod, room)[0], first_fit(pod, room.left)


class Fgd:
    """The node and GPU on which the pod leaves the fewest pieces that typical pods cannot use.

    Scores are whole numbers, as published: with exact ones it is worse.
    """

    def __init__(self, mix: Mix) -> None:
        self._unusable = Fragments(mix)
        self._known: dict[tuple[str, tuple[int, ...], int], float] = {}

    def best(self, pod: PodType, room: Room) -> tuple[float, GpuIndexes]:
        """The score of a node where the pod fits, and the GPUs there."""
        left = tuple(room.left)
        before = self._fragments(room.model, left, room.cpu_milli)
        cpu_milli = room.cpu_milli - pod.cpu_milli
        found = choices(pod, left) if pod.gpus == 1 and pod.milli < WHOLE_MILLI else (first_fit(pod, left),)
        scored = [
            (_score(before - self._fragments(room.model, without(pod, left, gpus), cpu_milli)), gpus)
            for gpus in found
        ]
        return max(scored, key=lambda pair: pair[0])

    def _fragments(self, model: str, left: tuple[int, ...], cpu_milli: int) -> float:
        key = model, left, cpu_milli
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._unusable.of(model, left, cpu_milli)
        return known


def _score(less: float) -> int:
    return int(100 / (1 + exp(-less / 1000)))

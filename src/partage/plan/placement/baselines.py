"""Published policies, to compare with: best fit, and fragmentation gradient descent (FGD, ATC'23)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from partage.plan.placement.mix import WHOLE_MILLI, Mix, PodType
from partage.plan.placement.room import GpuIndexes, Room, choices, first_fit, without

_CPU_SCALE, _GPU_SCALE = 128_000, 8 * WHOLE_MILLI
_TYPICAL = 0.95
_OF_EQUALS = 0.01


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

    Scores are whole numbers, as published: with exact ones it is worse. fullest: of nodes with the same score
    the fullest is best, and the GPU is the allocator's first fit. So it gives as much where kube-scheduler
    looks at part of the nodes and draws among equals, too.
    """

    def __init__(self, mix: Mix, *, fullest: bool = False) -> None:
        self._fullest = fullest
        self._typical = _typical(mix)
        self._known: dict[tuple[str, tuple[int, ...], int], float] = {}

    def best(self, pod: PodType, room: Room) -> tuple[float, GpuIndexes]:
        """The score of a node where the pod fits, and the GPUs there."""
        left = tuple(room.left)
        before = self._fragments(room.model, left, room.cpu_milli)
        cpu_milli = room.cpu_milli - pod.cpu_milli
        chosen = pod.gpus == 1 and pod.milli < WHOLE_MILLI and not self._fullest
        found = choices(pod, left) if chosen else (first_fit(pod, left),)
        scored: list[tuple[float, GpuIndexes]] = [
            (_score(before - self._fragments(room.model, without(pod, left, gpus), cpu_milli)), gpus)
            for gpus in found
        ]
        score, gpus = max(scored, key=lambda pair: pair[0])
        if self._fullest:
            return score - _OF_EQUALS * (sum(left) / _GPU_SCALE + room.cpu_milli / _CPU_SCALE), gpus
        return score, gpus

    def _fragments(self, model: str, left: tuple[int, ...], cpu_milli: int) -> float:
        key = model, left, cpu_milli
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = sum(
                part * _unusable(pod, model, left, cpu_milli) for pod, part in self._typical
            )
        return known


def _score(less: float) -> int:
    return int(100 / (1 + exp(-less / 1000)))


def _unusable(pod: PodType, model: str, left: Sequence[int], cpu_milli: int) -> int:
    """Milli of a node's GPUs of which the pod cannot have anything."""
    can = (
        pod.gpus
        and pod.cpu_milli <= cpu_milli
        and pod.may_have(model)
        and sum(of_gpu >= pod.milli for of_gpu in left) >= pod.gpus
    )
    return sum(of_gpu for of_gpu in left if not can or of_gpu < pod.milli)


def _typical(mix: Mix) -> list[tuple[PodType, float]]:
    """The most frequent types, until they are 95 of 100 pods."""
    found: list[tuple[PodType, float]] = []
    total = 0.0
    for pod, part in sorted(mix.parts.items(), key=lambda pair: -pair[1]):
        if total >= _TYPICAL:
            break
        found.append((pod, part))
        total += part
    return [(pod, part / total) for pod, part in found]

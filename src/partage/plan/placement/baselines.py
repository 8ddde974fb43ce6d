"""Published policies to compare with: best fit, and FGD (fragmentation gradient descent, ATC'23)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from partage.plan.placement.mix import WHOLE_MILLI, Mix, PodType
from partage.plan.placement.room import GpuIndexes, Room, choices, first_fit, without
from partage.values import Frozen

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
        scored = [
            (_score(before - self._fragments(room.model, without(pod, left, gpus), cpu_milli)), gpus)
            for gpus in choices(pod, left)
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


_TYPICAL = 0.95


class _Wanted(Frozen):
    """GPUs that typical pods ask for."""

    gpus: int
    milli: int
    models: frozenset[str]

    def useful(self, model: str, left: Sequence[int]) -> int:
        """Milli of those GPUs of a node that such a pod can have, if it gets enough CPU."""
        if not self.gpus or (self.models and model not in self.models):
            return 0
        useful = [of_gpu for of_gpu in left if of_gpu >= self.milli]
        return sum(useful) if len(useful) >= self.gpus else 0


class Fragments:
    """The most frequent pods of a mix, and what they cannot use."""

    def __init__(self, mix: Mix) -> None:
        numbers: dict[_Wanted, int] = {}
        self._pods = [
            (
                numbers.setdefault(_Wanted(pod.gpus, pod.milli, pod.models), len(numbers)),
                pod.cpu_milli,
                part,
            )
            for pod, part in _typical(mix)
        ]
        self._wanted = list(numbers)

    def of(self, model: str, left: Sequence[int], cpu_milli: int) -> float:
        """Milli of a node's GPUs, mean over the pods. left: of each GPU.

        Added up pod by pod, in the published order: with another last bit FGD takes other nodes.
        """
        total = sum(left)
        unusable = [total - wanted.useful(model, left) for wanted in self._wanted]
        return sum(
            part * (unusable[number] if cpu <= cpu_milli else total) for number, cpu, part in self._pods
        )


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

"""How much of a node's GPUs typical pods cannot use: the measure of FGD (ATC'23)."""

from __future__ import annotations

from collections.abc import Sequence

from partage.plan.placement.mix import Mix, PodType
from partage.values import Frozen

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

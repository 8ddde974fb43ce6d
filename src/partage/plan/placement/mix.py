"""What the pods of a cluster ask for, and how often: what placement expects of the future."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from partage.values import Frozen

WHOLE_MILLI = 1000
"""A whole GPU."""


class PodType(Frozen):
    """Pods that ask for the same. cpu_milli, memory_mib: of the node. gpus: how many different GPUs, 0: none.
    milli: of each. models: that it may have; none: any.
    """

    cpu_milli: int
    memory_mib: int = 0
    gpus: int = 0
    milli: int = 0
    models: frozenset[str] = frozenset()

    @property
    def demand(self) -> int:
        """Milli of all its GPUs."""
        return self.gpus * self.milli

    def may_have(self, model: str) -> bool:
        """Whether a GPU of this model will do."""
        return not self.models or model in self.models


class Slots(Frozen):
    """Pods of several GPUs that ask for as many, of the same models. part: of all pods. cpu_milli: mean."""

    gpus: int
    models: frozenset[str]
    part: float
    cpu_milli: float


class Mix(Frozen):
    """parts: of each type, adding up to 1. Types that differ in memory alone are one."""

    parts: Mapping[PodType, float]

    @property
    def slots(self) -> tuple[Slots, ...]:
        """Of the pods of several GPUs."""
        parts: dict[tuple[int, frozenset[str]], float] = defaultdict(float)
        cpu: dict[tuple[int, frozenset[str]], float] = defaultdict(float)
        for pod, part in self.parts.items():
            if pod.gpus > 1:
                parts[pod.gpus, pod.models] += part
                cpu[pod.gpus, pod.models] += part * pod.cpu_milli
        return tuple(Slots(*key, part, cpu[key] / part) for key, part in parts.items())

    def single(self, model: str) -> dict[PodType, float]:
        """Types of one GPU or a part of one that may have this model."""
        return {pod: part for pod, part in self.parts.items() if pod.gpus == 1 and pod.may_have(model)}

    @property
    def without_gpus(self) -> dict[PodType, float]:
        """Types that want CPU alone."""
        return {pod: part for pod, part in self.parts.items() if not pod.gpus}


def mix_of(pods: Iterable[PodType]) -> Mix:
    """How often each type comes. Raises ValueError without pods."""
    counts: dict[PodType, int] = defaultdict(int)
    for pod in pods:
        counts[PodType(pod.cpu_milli, 0, pod.gpus, pod.milli, pod.models)] += 1
    if not counts:
        raise ValueError("no pods, so nothing is known of what pods ask for")
    total = sum(counts.values())
    return Mix({pod: count / total for pod, count in counts.items()})


def prices(mix: Mix, supply: Mapping[str, int]) -> dict[str, float]:
    """How much each model of GPU is asked for by name, as a part of what there is of it, if the cluster is
    asked for all that it has. A pod that names several models asks all of them.

    supply: milli of each model in the cluster.
    """
    demand = sum(part * pod.demand for pod, part in mix.parts.items())
    scale = sum(supply.values()) / demand if demand else 0.0
    found = dict.fromkeys(supply, 0.0)
    for pod, part in mix.parts.items():
        named = [model for model in pod.models if model in supply]
        of_named = sum(supply[model] for model in named)
        for model in named:
            found[model] += scale * part * pod.demand / of_named
    return found

"""What pods will ask for, estimated from those that came last.

Not to know which models pods may have, or how many ask for several GPUs, costs up to 11 points of allocation
(measured). So 2, 4 and 8 GPUs and every model that was ever named have a floor: they are never taken for
impossible.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping

from partage.plan.placement.mix import WHOLE_MILLI, Mix, PodType
from partage.scheduler.decide.asks import KindAmount, PodAsk
from partage.values import Frozen

WINDOW = 10_000
"""Pods of which the mix is made."""
FLOOR = 0.002
"""Part of all pods that ask for 2, 4 and 8 GPUs at least, and that name a model at least."""
_SEVERAL = (2, 4, 8)
_MOST_NAMED = 64
_CPU_PER_GPU = 9_500
"""Thousandths, of pods of several GPUs where none came yet: about what those of a production trace ask for.
"""

ModelsOf = Callable[[PodAsk], Mapping[str, KindAmount]]
"""What an ask is of each model of the cluster that it may have."""


class ExpectedPods(Frozen):
    """tables: by what tables are made; a pod is there once for each amount that it is of different models, so
    parts can add up to more than 1. priced: by which models are priced, each pod once.
    """

    tables: Mix
    priced: Mix


class MixWindow:
    """The asks of the last pods."""

    def __init__(self, size: int = WINDOW) -> None:
        self._size = size
        self._asks: deque[PodAsk] = deque()
        self._counts: Counter[PodAsk] = Counter()
        self._named: OrderedDict[frozenset[str], PodAsk] = OrderedDict()

    def __len__(self) -> int:
        return len(self._asks)

    def add(self, ask: PodAsk) -> None:
        """A pod was made."""
        self._asks.append(ask)
        self._counts[ask] += 1
        if len(self._asks) > self._size:
            oldest = self._asks.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    @property
    def counts(self) -> dict[PodAsk, int]:
        """How many asked for each."""
        return dict(self._counts)

    def expected(
        self, models_of: ModelsOf, models: frozenset[str], counts: Mapping[PodAsk, int]
    ) -> ExpectedPods:
        """models: of the cluster. counts: of this window, a moment ago."""
        parts: dict[PodType, float] = defaultdict(float)
        priced: dict[PodType, float] = defaultdict(float)
        pods = 0
        for ask, count in counts.items():
            of_models = models_of(ask)
            if ask.wants_gpus and not of_models:
                continue  # devices that are no GPUs of this cluster
            pods += count
            for pod in _types(ask, of_models, models):
                parts[pod] += count
            pod = _named_type(ask, of_models, models)
            priced[pod] += count
            if pod.models:
                self._named[pod.models] = ask
                self._named.move_to_end(pod.models)
                if len(self._named) > _MOST_NAMED:
                    self._named.popitem(last=False)
        pods = max(pods, 1)
        for named in list(self._named.values()):
            self._floor_of_named(named, models_of, models, (parts, priced), FLOOR * pods)
        _floor_of_several(parts, priced, FLOOR * pods)
        return ExpectedPods(
            Mix({pod: count / pods for pod, count in parts.items()}),
            Mix({pod: count / pods for pod, count in priced.items()}),
        )

    def _floor_of_named(
        self,
        ask: PodAsk,
        models_of: ModelsOf,
        models: frozenset[str],
        into: tuple[dict[PodType, float], dict[PodType, float]],
        least: float,
    ) -> None:
        of_models = models_of(ask)
        if not of_models:
            return
        named = _named_type(ask, of_models, models)
        parts, priced = into
        missing = least - sum(count for pod, count in priced.items() if pod.models == named.models)
        if missing > 0 and named.models:
            priced[named] += missing
            for pod in _types(ask, of_models, models):
                parts[pod] += missing


def _types(ask: PodAsk, of_models: Mapping[str, KindAmount], models: frozenset[str]) -> list[PodType]:
    """The pod, once for each amount that it is of some models."""
    if not of_models:
        return [PodType(ask.cpu_milli)]
    groups: dict[tuple[int, int], set[str]] = defaultdict(set)
    for model, wanted in of_models.items():
        groups[wanted.gpus, wanted.milli].add(model)
    return [
        PodType(ask.cpu_milli, 0, gpus, milli, _unless_all(names, models))
        for (gpus, milli), names in groups.items()
    ]


def _named_type(ask: PodAsk, of_models: Mapping[str, KindAmount], models: frozenset[str]) -> PodType:
    """The pod once, with the mean of what it is of each model."""
    if not of_models:
        return PodType(ask.cpu_milli)
    gpus = max(wanted.gpus for wanted in of_models.values())
    milli = sum(wanted.milli for wanted in of_models.values()) // len(of_models)
    return PodType(ask.cpu_milli, 0, gpus, milli, _unless_all(of_models, models))


def _unless_all(names: Mapping[str, KindAmount] | set[str], models: frozenset[str]) -> frozenset[str]:
    return frozenset() if models <= set(names) else frozenset(names)


def _floor_of_several(parts: dict[PodType, float], priced: dict[PodType, float], least: float) -> None:
    cpus = [
        (count, pod.cpu_milli / pod.gpus)
        for pod, count in parts.items()
        if pod.gpus and pod.milli == WHOLE_MILLI
    ]
    weight = sum(count for count, _ in cpus)
    per_gpu = sum(count * cpu for count, cpu in cpus) / weight if weight else _CPU_PER_GPU
    for gpus in _SEVERAL:
        missing = least - sum(count for pod, count in priced.items() if pod.gpus == gpus)
        if missing > 0:
            pod = PodType(int(per_gpu * gpus), 0, gpus, WHOLE_MILLI)
            parts[pod] = parts.get(pod, 0.0) + missing
            priced[pod] = priced.get(pod, 0.0) + missing

"""Which way to score is best for a mix of pods on these nodes: each is tried on pods that are drawn of it.

No table is best for every mix. The steady one wins where all pods are parts of GPUs, the contested one where
whole GPUs and large parts leave holes for few small pods; and the price of models can be too high where many
pods name one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from partage.plan.placement.baselines import Fgd
from partage.plan.placement.mix import WHOLE_MILLI, Mix, PodType
from partage.plan.placement.room import NodeScores, Room
from partage.plan.placement.ssp import STEADY, Ssp, SspWay
from partage.plan.placement.waste import waste_tables

MOST_NODES = 300
"""Of a larger cluster as many of each kind as its part."""
LOADS = (1.0, 1.3)
_TABLES = (STEADY, SspWay(contested=0.5), SspWay(contested=1.0))
_LESS_DEAR = 0.25
_WORTH = 0.1
"""Points of allocation by which another way has to be better than the published one."""
_NOISE = 0.05
"""Points below FGD that are not counted."""
_BELOW = 100.0
"""How much a point below FGD counts."""


def tuned_scores(
    mix: Mix, rooms: Sequence[Room], *, supply: Mapping[str, int], priced: Mix | None = None
) -> NodeScores:
    """The way to score that gives the most of the GPUs away in a replay: SSP in one of several ways, or FGD
    itself where each of them gave less. The same mix and nodes give the same. rooms: the nodes of the
    cluster; what is used of them does not count. The others are as for ``Ssp``. It takes some seconds.
    """
    tables = waste_tables(mix, list(supply))
    nodes = sampled(rooms)
    pods = drawn_pods(mix if priced is None else priced, nodes)
    if not pods:
        return Ssp(mix, supply, exact=False, priced=priced, tables=tables)
    of_fgd = replay(Fgd(mix), nodes, pods)

    def tried(way: SspWay) -> tuple[float, SspWay]:
        scores = Ssp(mix, supply, exact=False, priced=priced, way=way, tables=tables)
        return _worth(replay(scores, nodes, pods), of_fgd) + _WORTH * (way == STEADY), way

    worth, way = max(map(tried, _TABLES), key=_first)
    if any(pod.models for pod in mix.parts):
        less_dear = SspWay(contested=way.contested, price=_LESS_DEAR)
        worth, way = max((worth, way), tried(less_dear), key=_first)
    if worth < 0:
        return Fgd(mix, fullest=True)
    return Ssp(mix, supply, exact=False, priced=priced, way=way, tables=tables)


def _first(tried: tuple[float, SspWay]) -> float:
    return tried[0]


def _worth(given: Sequence[float], of_fgd: Sequence[float]) -> float:
    more = [a - b for a, b in zip(given, of_fgd, strict=True)]
    return sum(more) / len(more) + _BELOW * min(0.0, min(more) + _NOISE)


def sampled(rooms: Sequence[Room]) -> list[Room]:
    """Nodes without pods, of each kind as many as its part, in an order that does not depend on theirs."""
    empty = [
        Room(
            room.model,
            room.most_cpu_milli,
            room.most_memory_mib,
            [WHOLE_MILLI] * len(room.left),
            room.most_cpu_milli,
            room.most_memory_mib,
        )
        for room in rooms
    ]
    empty.sort(key=lambda room: (room.model, len(room.left), room.cpu_milli, room.memory_mib))
    count = min(len(empty), MOST_NODES)
    nodes = [empty[place * len(empty) // count] for place in range(count)]
    Random(0).shuffle(nodes)  # noqa: S311 - a draw that can be repeated, no secret
    return nodes


def drawn_pods(mix: Mix, nodes: Sequence[Room]) -> list[PodType]:
    """Pods of the mix that ask for more than all GPUs; none where no pod asks for any."""
    total = sum(sum(room.left) for room in nodes)
    types = sorted(
        mix.parts, key=lambda pod: (pod.cpu_milli, pod.gpus, pod.milli, sorted(pod.models), pod.memory_mib)
    )
    if not total or not any(pod.demand for pod in types):
        return []
    random = Random(0)  # noqa: S311 - a draw that can be repeated, no secret
    weights = [mix.parts[pod] for pod in types]
    found: list[PodType] = []
    asked = 0
    while asked < LOADS[-1] * total:
        for pod in random.choices(types, weights, k=100):
            found.append(pod)
            asked += pod.demand
    return found


def replay(scores: NodeScores, nodes: Sequence[Room], pods: Sequence[PodType]) -> list[float]:
    """Percent of the GPUs that pods have when they have asked for so much as ``LOADS`` says."""
    live = [
        Room(one.model, one.cpu_milli, one.memory_mib, [*one.left], one.most_cpu_milli, one.most_memory_mib)
        for one in nodes
    ]
    total = sum(sum(room.left) for room in live)
    known: dict[PodType, list[float]] = {}
    seen: dict[PodType, int] = {}
    changes: list[int] = []
    found: list[float] = []
    asked = given = 0
    for pod in pods:
        stale = changes[seen[pod] :] if pod in seen else range(len(live))
        row = known.setdefault(pod, [_NO] * len(live))
        for place in set(stale):
            row[place] = scores.best(pod, live[place])[0] if live[place].fits(pod) else _NO
        seen[pod] = len(changes)
        if (best := max(row)) != _NO:
            place = row.index(best)
            live[place].take(pod, scores.best(pod, live[place])[1])
            changes.append(place)
            given += pod.demand
        asked += pod.demand
        while len(found) < len(LOADS) and asked >= LOADS[len(found)] * total:
            found.append(100 * given / total)
    return found


_NO = float("-inf")

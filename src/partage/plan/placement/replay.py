"""Which way to score is best for a mix of pods on these nodes: each is tried on pods that are drawn of it.

No one way is best for every mix. SSP as published gives most where there are many parts of GPUs or little
CPU. It promises small pods to every hole, and where they are rare, it gives less than FGD; with FGD's measure
mixed in, it does not. And the price of models can be too high where many pods name one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from msgspec.structs import replace

from partage.plan.placement.baselines import Fgd
from partage.plan.placement.mix import WHOLE_MILLI, Mix, PodType
from partage.plan.placement.room import NO, KnownScores, NodeScores, Room, ScoredRoom
from partage.plan.placement.ssp import PUBLISHED, Ssp, SspWay, waste_tables

MOST_NODES = 1_500
"""Of a larger cluster as many of each kind as its part. On 300, draws differ by 0.3 points."""
LOADS = (1.0, 1.3)
_DRAWS = 2
_FRAGMENTS = (PUBLISHED.fragments, 0.7)
_PRICES = (PUBLISHED.price, 0.25, 0.1)
_NOISE = 0.05
"""Points of allocation by which two draws of the same mix differ."""


def tuned_scores(
    mix: Mix, rooms: Sequence[Room], *, supply: Mapping[str, int], priced: Mix | None = None
) -> Ssp:
    """SSP in the way that gives the most of the GPUs away in replays, of those that are nowhere below FGD.

    The same mix and nodes give the same. rooms: the nodes of the cluster; what is used of them does not
    count. The others are as for ``Ssp``. It takes some seconds for a thousand nodes.
    """
    tables = waste_tables(mix, list(supply))
    nodes = sampled(rooms)
    draws = [drawn_pods(mix if priced is None else priced, nodes, seed) for seed in range(_DRAWS)]
    if not all(draws):
        return Ssp(mix, supply, exact=False, priced=priced, tables=tables)
    of_fgd = [replay(Fgd(mix), nodes, pods) for pods in draws]
    best, most = PUBLISHED, float("-inf")
    for price in _PRICES if any(pod.models for pod in mix.parts) else _PRICES[:1]:
        for fragments in _FRAGMENTS:
            way = SspWay(fragments, price)
            scores = Ssp(mix, supply, exact=False, priced=priced, way=way, tables=tables)
            worth = _worth([replay(scores, nodes, pods) for pods in draws], of_fgd)
            if worth > most:
                best, most = way, worth
        if most > -_NOISE:
            break
    return Ssp(mix, supply, exact=False, priced=priced, way=best, tables=tables)


def _worth(given: Sequence[Sequence[float]], of_fgd: Sequence[Sequence[float]]) -> float:
    """Points above FGD, mean of draws and loads; where it is below at one load, what it is there."""
    more = [
        sum(mine[load] - other[load] for mine, other in zip(given, of_fgd, strict=True)) / len(given)
        for load in range(len(LOADS))
    ]
    return min(more) if min(more) < 0 else sum(more) / len(more)


def sampled(rooms: Sequence[Room]) -> list[Room]:
    """Nodes without pods, of each kind as many as its part, in an order that does not depend on theirs."""
    empty = [
        replace(
            room,
            cpu_milli=room.most_cpu_milli,
            memory_mib=room.most_memory_mib,
            left=[WHOLE_MILLI] * len(room.left),
        )
        for room in rooms
    ]
    empty.sort(key=lambda room: (room.model, len(room.left), room.cpu_milli, room.memory_mib))
    count = min(len(empty), MOST_NODES)
    nodes = [empty[place * len(empty) // count] for place in range(count)]
    Random(0).shuffle(nodes)  # noqa: S311 - a draw that can be repeated, no secret
    return nodes


def drawn_pods(mix: Mix, nodes: Sequence[Room], seed: int) -> list[PodType]:
    """Pods of the mix that ask for more than all GPUs; none where no pod asks for any."""
    total = sum(sum(room.left) for room in nodes)
    types = sorted(
        mix.parts, key=lambda pod: (pod.cpu_milli, pod.gpus, pod.milli, sorted(pod.models), pod.memory_mib)
    )
    if not any(pod.demand for pod in types):
        return []
    random = Random(seed)  # noqa: S311 - a draw that can be repeated, no secret
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
    total = sum(sum(room.left) for room in nodes)
    live = [ScoredRoom(room, scores) for room in nodes]
    known = KnownScores(live)
    found: list[float] = []
    asked = given = 0
    for pod in pods:
        row = known.of(pod)
        if (best := max(row)) != NO:
            place = row.index(best)
            live[place].take(pod)
            known.changed(place)
            given += pod.demand
        asked += pod.demand
        while len(found) < len(LOADS) and asked >= LOADS[len(found)] * total:
            found.append(100 * given / total)
    return found

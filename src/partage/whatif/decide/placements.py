"""How much of a cluster's GPUs pods get under each way to choose their nodes. Pure.

The experiment of the FGD paper (ATC'23): pods of a trace come in a random order, more of them than fit; none
ends, none waits. One that fits somewhere has to be placed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from random import Random

from partage.plan.placement.baselines import BestFit, Fgd
from partage.plan.placement.mix import PodType, mix_of
from partage.plan.placement.replay import tuned_scores
from partage.plan.placement.room import GpuIndexes, NodeScores, Room, first_fit
from partage.plan.placement.ssp import Ssp
from partage.values import Frozen
from partage.whatif.decide.node import balance, balanced_allocation, least_allocated
from partage.whatif.decide.scheduler import Draw, KubeScheduler, drawn

PROGRESS_EVERY = 200
"""Pods between two calls of ``on_progress``."""


class PlacementPolicy(StrEnum):
    """ssp: kube-scheduler with the extender, whose score decides; the GPU is the allocator's first fit.

    ssp-exact: the best of all nodes and GPUs. fgd, bestfit: the same by published scores. stock:
    kube-scheduler alone.
    """

    SSP = "ssp"
    SSP_EXACT = "ssp-exact"
    FGD = "fgd"
    BESTFIT = "bestfit"
    STOCK = "stock"

    @property
    def by_kube_scheduler(self) -> bool:
        """Part of the nodes are looked at, and one of the best is drawn."""
        return self in {PlacementPolicy.SSP, PlacementPolicy.STOCK}


class PlacedPods(Frozen):
    """allocation: percent of the cluster's GPUs that pods have, by the load, percent of its GPUs that pods
    have asked for. placed: pods, of how many.
    """

    policy: PlacementPolicy
    allocation: Mapping[int, float]
    placed: int
    pods: int


def arrivals(pods: Sequence[PodType], nodes: int, limit: int, seed: int) -> tuple[list[int], list[int]]:
    """The order of pods, by their place in ``pods``, and the order in which nodes are looked at.

    All pods in a random order; then, while they ask for less than limit (milli), pods drawn from all. The
    same seed gives the same on each machine.
    """
    random = Random(seed)  # noqa: S311 - a draw that can be repeated, no secret
    order = list(range(len(pods)))
    random.shuffle(order)
    demand = sum(pod.demand for pod in pods)
    while order and demand > limit:
        demand -= pods[order.pop(random.randrange(len(order)))].demand
    while demand:
        number = random.randrange(len(pods))
        # Of each GPU, as in the published experiment: so its figures can be compared.
        if demand + pods[number].milli > limit:
            break
        order.append(number)
        demand += pods[number].demand
    nodes_order = list(range(nodes))
    random.shuffle(nodes_order)
    return order, nodes_order


def place_all(
    policy: PlacementPolicy,
    pods: Sequence[PodType],
    rooms: Sequence[Room],
    *,
    load: int,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    draw: Draw | None = None,
) -> PlacedPods:
    """Place pods until they have asked for ``load`` percent of the GPUs. rooms: the nodes without pods; they
    are not changed. draw: which of the equally good nodes is taken; its arguments are the pod by its place in
    ``pods``, and nodes by theirs in ``rooms``. Raises ValueError where no pod asks for a GPU, or no node has
    one.
    """
    supply: dict[str, int] = defaultdict(int)
    for room in rooms:
        supply[room.model] += sum(room.left)
    total = sum(supply.values())
    if not total or not any(pod.demand for pod in pods):
        raise ValueError("no pod asks for a GPU, or no node has one")
    order, nodes_order = arrivals(pods, len(rooms), total * load // 100, seed)
    scores = _scores(policy, pods, rooms, supply)
    numbers: dict[PodType, _Class] = {}
    nodes = [_Node(rooms[number], scores) for number in nodes_order]
    scheduler = KubeScheduler(nodes, None if policy.by_kube_scheduler else len(nodes))
    if draw is None:
        draw = drawn(seed) if policy.by_kube_scheduler else lambda _pod, best: best[0]
    place_of = {number: place for place, number in enumerate(nodes_order)}
    columns: dict[int, list[float]] = defaultdict(list)
    asked = got = placed = 0
    for done, number in enumerate(order):
        if done % PROGRESS_EVERY == 0:
            on_progress(done, len(order))
        pod = pods[number]
        kind = numbers.setdefault(pod, _Class(len(numbers), pod))
        asked += pod.demand
        if best := scheduler.best(kind):
            node = place_of[draw(number, [nodes_order[place] for place in best])]
            nodes[node].take(pod)
            scheduler.changed(node)
            got += pod.demand
            placed += 1
        columns[round(100 * asked / total)].append(round(100 * got / total, 2))
    on_progress(len(order), len(order))
    return PlacedPods(policy, _at_each_load(columns), placed, len(order))


def _at_each_load(columns: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """The mean of each percent of load; where no pod came, it is as before."""
    found: dict[int, float] = {}
    given = 0.0
    for load in range(max(columns) + 1):
        if column := columns.get(load):
            given = round(sum(column) / len(column), 2)
        found[load] = given
    return found


def _scores(
    policy: PlacementPolicy, pods: Sequence[PodType], rooms: Sequence[Room], supply: Mapping[str, int]
) -> NodeScores:
    match policy:
        case PlacementPolicy.SSP:
            return tuned_scores(mix_of(pods), rooms, supply=supply)
        case PlacementPolicy.SSP_EXACT:
            return Ssp(mix_of(pods), supply, exact=True)
        case PlacementPolicy.FGD:
            return Fgd(mix_of(pods))
        case PlacementPolicy.BESTFIT:
            return BestFit()
        case PlacementPolicy.STOCK:
            return _Stock()


class _Stock:
    """kube-scheduler's own scores: GPUs do not count."""

    def best(self, pod: PodType, room: Room) -> tuple[float, GpuIndexes]:
        cpu, memory = room.most_cpu_milli, room.most_memory_mib
        used = cpu - room.cpu_milli, memory - room.memory_mib
        then = used[0] + pod.cpu_milli, used[1] + pod.memory_mib
        before = balance(used[0], cpu, used[1], memory)
        score = least_allocated(then[0], cpu, then[1], memory)
        score += balanced_allocation(before, balance(then[0], cpu, then[1], memory))
        return score, first_fit(pod, room.left)


class _Class(Frozen):
    """Pods that ask for the same."""

    number: int
    pod: PodType


class _Node:
    """One node, as the scheduler asks it."""

    def __init__(self, room: Room, scores: NodeScores) -> None:
        self._room = Room(
            room.model,
            room.cpu_milli,
            room.memory_mib,
            [*room.left],
            room.most_cpu_milli,
            room.most_memory_mib,
        )
        self._scores = scores

    def fits(self, kind: _Class) -> bool:
        return self._room.fits(kind.pod)

    def score(self, kind: _Class) -> float:
        return self._scores.best(kind.pod, self._room)[0]

    def take(self, pod: PodType) -> None:
        self._room.take(pod, self._scores.best(pod, self._room)[1])

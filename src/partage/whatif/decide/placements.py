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
from partage.plan.placement.room import GpuIndexes, NodeScores, Room, ScoredRoom, first_fit
from partage.plan.placement.ssp import Ssp
from partage.values import Frozen
from partage.whatif.decide.kube_scheduler import (
    Draw,
    KubeScheduler,
    balance,
    balanced_allocation,
    drawn,
    least_allocated,
)

PROGRESS_EVERY = 200
"""Pods between two calls of ``on_progress``."""


class PlacementPolicy(StrEnum):
    """ssp: kube-scheduler with the extender, whose best node is taken; of several that are equally good, that
    with the best of kube-scheduler's own scores. The GPU is the allocator's first fit.

    ssp-exact: the best of all nodes and GPUs. fgd, bestfit: the same by published scores. stock:
    kube-scheduler alone. today: the same, but pods that have a node begin on it.
    """

    SSP = "ssp"
    SSP_EXACT = "ssp-exact"
    FGD = "fgd"
    BESTFIT = "bestfit"
    STOCK = "stock"
    TODAY = "today"

    @property
    def by_kube_scheduler(self) -> bool:
        """Part of the nodes are looked at, and one of the best is drawn."""
        return self in {PlacementPolicy.SSP, PlacementPolicy.STOCK, PlacementPolicy.TODAY}


class PlacedPods(Frozen):
    """allocation: percent of the cluster's GPUs that pods have, by the load, percent of its GPUs that pods
    have asked for; with ``today`` from what they ask for now. placed: pods, of how many. elsewhere: for which
    their own node had no room.
    """

    policy: PlacementPolicy
    allocation: Mapping[int, float]
    placed: int
    pods: int
    elsewhere: int = 0


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
    today: Mapping[int, int] | None = None,
) -> PlacedPods:
    """Place pods until they have asked for ``load`` percent of the GPUs. rooms: the nodes without pods; they
    are not changed. draw: which of the equally good nodes is taken; its arguments are the pod by its place in
    ``pods``, and nodes by theirs in ``rooms``. today: nodes of pods that have one, alike; for that policy.
    Raises ValueError where no pod asks for a GPU, or no node has one.
    """
    supply: dict[str, int] = defaultdict(int)
    for room in rooms:
        supply[room.model] += sum(room.left)
    total = sum(supply.values())
    if not total or not any(pod.demand for pod in pods):
        raise ValueError("no pod asks for a GPU, or no node has one")
    order, nodes_order = arrivals(pods, len(rooms), total * load // 100, seed)
    scores = _scores(policy, pods, rooms, supply)
    nodes = [_Node(rooms[number], scores) for number in nodes_order]
    scheduler = KubeScheduler(nodes, None if policy.by_kube_scheduler else len(nodes))
    if draw is None:
        draw = drawn(seed) if policy.by_kube_scheduler else lambda _pod, best: best[0]
    place_of = {number: place for place, number in enumerate(nodes_order)}
    curve = _Curve(total)
    begun = _Begun(others=order)
    if policy is PlacementPolicy.TODAY:
        begun = _begin(order, pods, nodes, {number: place_of[at] for number, at in (today or {}).items()})
        curve.begin([pods[number].demand for number in begun.here])
    for done, number in enumerate(begun.others):
        if done % PROGRESS_EVERY == 0:
            on_progress(done, len(order))
        pod = pods[number]
        best = scheduler.best(pod)
        if policy is PlacementPolicy.SSP and len(best) > 1:
            best = _best_by_stock(best, nodes, pod)
        if best:
            node = place_of[draw(number, [nodes_order[place] for place in best])]
            nodes[node].take(pod)
            scheduler.changed(node)
        curve.add(pod.demand, placed=bool(best))
    on_progress(len(order), len(order))
    return PlacedPods(policy, curve.at_each_load(), curve.placed, len(order), begun.elsewhere)


class _Curve:
    """What was asked for and given so far, of total milli."""

    def __init__(self, total: int) -> None:
        self._total, self._asked, self._given = total, 0, 0
        self._columns: dict[int, list[float]] = defaultdict(list)
        self._first = 0
        self.placed = 0

    def begin(self, demands: Sequence[int]) -> None:
        """Pods that are there from the first: before them there is no curve."""
        if demands:
            self._asked = self._given = sum(demands)
            self.placed = len(demands)
            self._note()
            (self._first,) = self._columns

    def add(self, demand: int, *, placed: bool) -> None:
        """A pod came."""
        self._asked += demand
        self._given += demand if placed else 0
        self.placed += placed
        self._note()

    def _note(self) -> None:
        given = round(100 * self._given / self._total, 2)
        self._columns[round(100 * self._asked / self._total)].append(given)

    def at_each_load(self) -> dict[int, float]:
        """The mean of each percent of load; where no pod came, it is as before."""
        found: dict[int, float] = {}
        given = 0.0
        for load in range(self._first, max(self._columns) + 1):
            if column := self._columns.get(load):
                given = round(sum(column) / len(column), 2)
            found[load] = given
        return found


class _Begun(Frozen):
    """here: pods that are on their nodes. others: those that come. elsewhere: how many of them have a node
    that had no room.
    """

    here: Sequence[int] = ()
    others: Sequence[int] = ()
    elsewhere: int = 0


def _begin(
    order: Sequence[int], pods: Sequence[PodType], nodes: Sequence[_Node], today: Mapping[int, int]
) -> _Begun:
    """Put pods on their nodes, the largest parts of GPUs first: which GPU one has, a trace does not say."""
    first = order[: len(pods)]  # behind them are some of them once more
    mine = sorted((number for number in first if number in today), key=lambda n: (-pods[n].milli, n))
    here = []
    for number in mine:
        node = nodes[today[number]]
        if node.fits(pods[number]):
            node.take_tightly(pods[number])
            here.append(number)
    taken = {*here}
    others = [number for number in first if number not in taken]
    return _Begun(here, (*others, *order[len(pods) :]), len(mine) - len(here))


def _best_by_stock(equal: Sequence[int], nodes: Sequence[_Node], pod: PodType) -> list[int]:
    """All of these get 10 from the extender, so kube-scheduler's own scores decide between them."""
    own = [nodes[place].own_score(pod) for place in equal]
    return [place for place, score in zip(equal, own, strict=True) if score == max(own)]


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
        case PlacementPolicy.STOCK | PlacementPolicy.TODAY:
            return _STOCK


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


_STOCK = _Stock()


class _Node(ScoredRoom):
    """One node, as the scheduler asks it."""

    def own_score(self, pod: PodType) -> float:
        return _STOCK.best(pod, self._room)[0]

    def take_tightly(self, pod: PodType) -> None:
        """With the GPUs that have least left."""
        left = self._room.left
        enough = sorted((left[index], index) for index in range(len(left)) if left[index] >= pod.milli)
        self._room.take(pod, tuple(index for _, index in enough[: pod.gpus]))

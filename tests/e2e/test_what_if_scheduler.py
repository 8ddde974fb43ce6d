"""``simulate --trace`` against a kube-scheduler that runs: which pods fit, which wait and in which order they
start, and the score of every node on which a pod fits.

The trace is played on the running scheduler first, with the time of the trace. Nodes are objects that offer
what the policy gives them. What a kubelet and an agent decide on a node (devices, refusals, what is listed
afterwards) is done with ``NodeAllocator``, as ``tests/lab/test_what_if_live.py`` compares with a live agent.
Then ``play`` plays the same trace; where several nodes are equally good it takes the one that the scheduler
drew. Both have to come to the same events.

``PARTAGE_E2E_SEEDS=0,1,2`` plays several traces for each policy, ``PARTAGE_E2E_TIMES=4`` as many times the
pods and nodes.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from random import Random

import pytest

from partage.model.share import AllocationRefused
from partage.plan.offer.desired import DesiredState
from partage.plan.serve.unit_allocation import NoRoom
from partage.units import GIB, MIB
from partage.values import Frozen
from partage.whatif.decide.demand import Cause, Demand, NodeOffer, Unmet, demand_on
from partage.whatif.decide.kube_scheduler import MOST_PODS, Node, PodClass
from partage.whatif.decide.node_devices import Holding, NodeAllocator
from partage.whatif.decide.play import Ended, Event, Refused, Started, need_of, never_fits, play
from partage.whatif.decide.pods import Fleet, NodeKind, PodWants, TracePod
from tests.e2e.control_plane import PROGRAMS, Bound, ControlPlane, control_plane
from tests.whatif.decide.fleets import desired, fleet, kind

TIMES = int(os.environ.get("PARTAGE_E2E_TIMES", "1"))
PODS = 60 * TIMES
HOUR = 3600.0
SEEDS = [int(text) for text in os.environ.get("PARTAGE_E2E_SEEDS", "0").split(",")]
LAYOUT = (
    "gpus: [{select: {index: [0]}, mig: {layout: [3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb]}},"
    " {select: rest, exclusive: {}}]"
)
MIXED = "gpus: [{select: {index: [0]}, time-slicing: {replicas: 3}}, {select: rest, exclusive: {}}]"


class Case(Frozen):
    """kinds: of which there are ``each`` nodes. gpus, milli, memory_gib: what pods draw from."""

    policy: str
    kinds: tuple[NodeKind, ...]
    each: int
    gpus: tuple[int, ...]
    milli: tuple[int, ...] = ()
    memory_gib: tuple[int, ...] = ()


UNLIKE = (kind("1xa10", 16, 64), kind("2xt4", 16, 48), kind("2xa100-80gb", 64, 512))
A100 = (kind("2xa100-80gb", 32, 512), kind("3xa100-80gb", 96, 768))
A10 = (kind("1xa10", 16, 64), kind("2xa10", 64, 512))
CASES = {
    "exclusive": Case("gpus: [{select: all, exclusive: {}}]", UNLIKE, 5, (0, 1, 1, 1, 2), (1000,)),
    "time-slicing": Case(
        "gpus: [{select: all, time-slicing: {replicas: 2}}]", UNLIKE, 3, (0, 1, 1, 1), (500,)
    ),
    "MPS": Case("gpus: [{select: all, mps: {replicas: 4}}]", UNLIKE, 2, (1,), (120, 250)),
    "shared and whole": Case(MIXED, UNLIKE, 4, (1,), (330, 1000)),
    "MIG": Case(LAYOUT, A100, 4, (1,), (120, 250, 490, 1000)),
    "memory": Case("gpus: [{select: all, mps: {unit: 1Gi}}]", A10, 4, (1,), memory_gib=(1, 3, 5, 8, 12, 20)),
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    programs = os.environ.get("PARTAGE_E2E_BIN")
    if not programs:
        pytest.skip("no scheduler: make e2e builds one")
    assert all(Path(programs, name).exists() for name in PROGRAMS)
    with control_plane(Path(programs), tmp_path_factory.mktemp("control-plane")) as found:
        yield found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES, ids=str)
def test_the_running_scheduler_decides_the_same(name: str, seed: int, plane: ControlPlane) -> None:
    case = CASES[name]
    nodes = fleet(*case.kinds, each=case.each * TIMES)
    states = desired(case.policy, nodes.kinds)
    pods = _trace(case, nodes, seed)
    live = _Live(plane, pods, nodes, states)
    try:
        live.run()
    finally:
        plane.remove_all()
    drawn = defaultdict(deque, {number: deque(chosen) for number, chosen in live.chosen.items()})
    played = play(pods, nodes, states, draw=partial(_follow, drawn))
    if any(isinstance(one, Refused) for one in live.events):
        # Then nodes list less and more again, and the scheduler tries again only those that could fit there
        # if it were empty: they stand behind the others, which play does not follow.
        first = next(place for place, one in enumerate(live.events) if isinstance(one, Refused)) + 1
        _same(played.events[:first], live.events[:first])
    else:
        _same(played.events, live.events)
        assert set(played.waiting) | played.never.keys() == live.unbound
    counted = live.counted
    print(f"\n{name}, seed {seed}: {len(nodes.names)} nodes, {counted}")
    assert counted["waited"] >= PODS // 12, "a trace in which nothing waits tests little"
    assert counted["scored"] > PODS // 4
    assert len(live.offsets) <= 1, "what the other plugins say is the same for all nodes and pods"


def _follow(drawn: Mapping[int, deque[int]], number: int, best: Sequence[int]) -> int:
    """The node that the scheduler took, if it is one of the best here, too."""
    if drawn[number] and drawn[number][0] in best:
        return drawn[number].popleft()
    return best[0]


def _same(ours: Sequence[Event], theirs: Sequence[Event]) -> None:
    """theirs: of the running scheduler."""
    for place, pair in enumerate(zip_longest(map(_plain, ours), map(_plain, theirs))):
        assert pair[0] == pair[1], f"after {[_plain(one) for one in theirs[max(0, place - 6) : place]]}"


def _plain(event: Event) -> tuple[float, str, int, int]:
    return event.at_s, type(event).__name__, event.pod, event.node


def _trace(case: Case, nodes: Fleet, seed: int) -> list[TracePod]:
    """More than the fleet has room for. No two things happen at the same moment."""
    draw = Random(seed)
    models = [frozenset[str](), frozenset[str](), nodes.kinds[0].models]
    pods = []
    for number in range(PODS):
        gpus = draw.choice(case.gpus)
        wants = PodWants(
            cpu_milli=draw.choice([0, 500, 1000, 2000, 6000, 12_000]),
            memory_bytes=draw.choice([0, 300 * MIB, 4 * GIB, 17 * GIB, 40 * GIB]),
            gpus=gpus,
            gpu_milli=draw.choice(case.milli) if gpus and case.milli else 0,
            gpu_memory_bytes=draw.choice(case.memory_gib) * GIB if case.memory_gib else 0,
            models=draw.choice(models) if gpus else frozenset(),
        )
        lasts_s = draw.uniform(0.5, 3) * HOUR
        pods.append(TracePod(f"pod-{number}", wants, number * 90 / TIMES + draw.random(), lasts_s))
    return pods


class _Live:
    """A trace on the running scheduler.

    events: as those of ``play``. chosen: nodes that the scheduler chose, by number of the pod. unbound: pods
    that were never bound. offsets: by how much its scores are above those of ``Node.score``.
    """

    def __init__(
        self, plane: ControlPlane, pods: Sequence[TracePod], nodes: Fleet, states: Sequence[DesiredState]
    ) -> None:
        self.events: list[Event] = []
        self.chosen: dict[int, list[int]] = defaultdict(list)
        self.unbound: set[int] = set()
        self.offsets: set[int] = set()
        self.counted = dict.fromkeys(("pods", "at once", "waited", "refused", "scored", "drawn"), 0)
        self._plane, self._pods, self._fleet = plane, pods, nodes
        self._offers = [NodeOffer(one) for one in states]
        self._nodes = [
            Node(name, at, nodes.kinds[at], NodeAllocator(self._offers[at]))
            for name, at in zip(nodes.names, nodes.kind_of, strict=True)
        ]
        self._listed = [self._list_of(node) for node in self._nodes]
        self._classes: dict[PodWants, PodClass] = {}
        self._running: dict[int, tuple[str, int, Holding]] = {}
        self._due: list[tuple[float, int, int]] = []
        self._names: dict[str, int] = {}

    def run(self) -> None:
        for node in self._nodes:
            kind = self._fleet.kinds[node.kind]
            amounts: dict[str, int | str] = {**self._list_of(node)}
            amounts |= {"cpu": f"{kind.cpu_milli}m", "memory": kind.memory_bytes or 0, "pods": MOST_PODS}
            self._plane.add_node(node.name, node.kind, amounts)
        self._plane.settle()
        arrivals = deque(sorted(range(len(self._pods)), key=lambda number: self._pods[number].created_s))
        while arrivals or any(number >= 0 for _, number, _ in self._due):
            created_s = self._pods[arrivals[0]].created_s if arrivals else None
            if self._due and (created_s is None or self._due[0][0] <= created_s):
                self._end(*heapq.heappop(self._due))
            else:
                number = arrivals.popleft()
                self.unbound.add(number)
                self.counted["pods"] += 1
                self._create(number, self._pods[number].name, self._pods[number].created_s)
            for number in self.unbound:
                fitting = [node.name for node in self._nodes if node.fits(self._class_of(number))]
                assert not fitting, f"pod-{number} waits with the scheduler, and here it fits on {fitting}"

    # --- what users, controllers and kubelets do ------------------------------------------------------

    def _create(self, number: int, name: str, now_s: float) -> None:
        wants = self._pods[number].wants
        needs = [demand_on(wants, *pair) for pair in zip(self._fleet.kinds, self._offers, strict=True)]
        demands: set[Demand] = {need for need in needs if not isinstance(need, Unmet)}
        assert len(demands) <= 1, "a manifest asks for the same everywhere"
        # One that is too large for every node asks for something all the same.
        demand = demands.pop() if demands else ((next(iter(self._offers[0].resources)), wants.gpus),)
        requests: dict[str, int | str] = {str(resource): count for resource, count in demand}
        if wants.cpu_milli:
            requests["cpu"] = f"{wants.cpu_milli}m"
        if wants.memory_bytes:
            requests["memory"] = wants.memory_bytes
        # A user sends a pod to the models that it can use, and whose shares are large enough.
        unsuitable = {Cause.MODEL, Cause.SHARE}
        kinds = [
            at for at, need in enumerate(needs) if not (isinstance(need, Unmet) and need.cause in unsuitable)
        ]
        self._names[name] = number
        self._plane.add_pod(name, requests, kinds)
        self._bind(self._plane.settle(), now_s)

    def _end(self, now_s: float, number: int, at: int) -> None:
        node = self._nodes[at]
        if number < 0:
            node.devices.look(now_s)
            self._relist(at, now_s)
            return
        name, _, holding = self._running.pop(number)
        node.leave(self._class_of(number), holding)
        self.events.append(Ended(now_s, number, at))
        self._relist(at, now_s)
        self._plane.end_pod(name)
        self._bind(self._plane.settle(), now_s)

    def _bind(self, bound: Sequence[Bound], now_s: float) -> None:
        for one in bound:
            number, at = self._names[one.pod], self._fleet.names.index(one.node)
            pod, node = self._class_of(number), self._nodes[at]
            self._compare_scores(one, pod)
            self.chosen[number].append(at)
            try:
                holding = node.take(pod, now_s)
            except AllocationRefused as refusal:
                self._refuse(one.pod, number, at, refusal, now_s)
                continue
            self.events.append(Started(now_s, number, at, holding))
            self.unbound.discard(number)
            self.counted["at once" if now_s == self._pods[number].created_s else "waited"] += 1
            self._running[number] = (one.pod, at, holding)
            heapq.heappush(self._due, (now_s + (self._pods[number].lasts_s or 0.0), number, at))
            self._relist(at, now_s)

    def _refuse(self, name: str, number: int, at: int, refusal: AllocationRefused, now_s: float) -> None:
        """The kubelet fails the pod, and its controller makes the next one."""
        assert isinstance(refusal, NoRoom)
        self.counted["refused"] += 1
        self.events.append(Refused(now_s, number, at, str(refusal), no_room=True))
        if (due_s := self._nodes[at].devices.due_s(now_s)) is not None:
            heapq.heappush(self._due, (due_s, -1, at))
        self._relist(at, now_s)
        self._plane.end_pod(name)
        self._bind(self._plane.settle(), now_s)
        self._create(number, f"{self._pods[number].name}-{len(self.events)}", now_s)

    def _list_of(self, node: Node) -> dict[str, int]:
        devices = node.devices
        return {str(name): devices.free[name] + len(devices.held[name]) for name in devices.free}

    def _relist(self, at: int, now_s: float) -> None:
        """The kubelet writes into its Node what the agent lists."""
        listed = self._list_of(self._nodes[at])
        if listed != self._listed[at]:
            self._listed[at] = listed
            self._plane.set_allocatable(self._nodes[at].name, listed)
            self._bind(self._plane.settle(), now_s)

    # --- comparing --------------------------------------------------------------------------------------

    def _class_of(self, number: int) -> PodClass:
        wants = self._pods[number].wants
        if wants not in self._classes:
            pairs = zip(self._fleet.kinds, self._offers, strict=True)
            self._classes[wants] = PodClass(
                len(self._classes), wants, [need_of(wants, *pair) for pair in pairs]
            )
        return self._classes[wants]

    def _compare_scores(self, one: Bound, pod: PodClass) -> None:
        """On which nodes the pod fits, and how good they are: every one, not only the one that was taken."""
        assert never_fits(pod.needs) is None, f"{one.pod} was bound, and fits on no node here"
        expected = {node.name: node.score(pod) for node in self._nodes if node.fits(pod)}
        assert expected.get(one.node) == max(expected.values()), f"{one} against {expected}"
        if not one.scores:
            return
        assert one.scores.keys() == expected.keys()
        apart = {one.scores[name] - score for name, score in expected.items()}
        assert len(apart) == 1, f"{one.pod}: {one.scores} against {expected}"
        self.offsets |= apart
        self.counted["scored"] += 1
        best = max(expected.values())
        self.counted["drawn"] += sum(score == best for score in expected.values()) > 1

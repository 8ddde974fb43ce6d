"""Any trace on any small fleet: nothing is given twice, and whoever waits could not have been served."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.ids import ResourceName, device_of
from partage.units import GIB
from partage.whatif.decide.demand import Cause, NodeOffer, demand_on
from partage.whatif.decide.kube_scheduler import drawn
from partage.whatif.decide.play import Ended, Played, Refused, Started, play
from partage.whatif.decide.pods import Fleet, NodeKind, PodWants, TracePod
from partage.whatif.decide.summary import summarise
from tests.examples import examples, variants
from tests.whatif.decide.fleets import POLICIES, desired, fleet, kind

GPU, SHARED = ResourceName("nvidia.com/gpu"), ResourceName("nvidia.com/gpu.shared")
KINDS = (kind("2xt4", 8, 32), kind("3xl4", 16, 32), kind("1xa10"))
WANTS = st.builds(
    PodWants,
    cpu_milli=st.sampled_from([0, 1000, 4000, 12_000]),
    memory_bytes=st.sampled_from([0, 4 * GIB, 20 * GIB]),
    gpus=st.sampled_from([0, 1, 1, 1, 1, 2, 3]),
    gpu_milli=st.sampled_from([100, 250, 330, 500, 700, 1000]),
    models=st.sampled_from([frozenset(), frozenset({"t4"}), frozenset({"l4", "a10"}), frozenset({"h100"})]),
)
PODS = st.builds(
    TracePod,
    name=st.just("pod"),
    wants=WANTS,
    created_s=st.integers(0, 60).map(float),
    lasts_s=st.one_of(st.none(), st.integers(0, 40).map(float)),
)
CASES = st.tuples(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique_by=lambda one: one.title),
    st.integers(1, 2),
    st.lists(PODS, min_size=1, max_size=16),
    st.integers(0, 3),
)


class _Ledger:
    """Who holds what, by a count of its own, and what would fit."""

    def __init__(self, pods: list[TracePod], nodes: Fleet, offers: list[NodeOffer]) -> None:
        self.pods, self.nodes, self.offers = pods, nodes, offers
        self.running: dict[int, Started] = {}
        self.made_s = {number: pod.created_s for number, pod in enumerate(pods)}
        self.refused: set[int] = set()

    def on(self, node: int) -> list[Started]:
        return [one for one in self.running.values() if one.node == node]

    def fits(self, pod: int, node: int) -> bool:
        """Whether some choice of shares serves the pod there now."""
        wants, number = self.pods[pod].wants, self.nodes.kind_of[node]
        what, offer = self.nodes.kinds[number], self.offers[number]
        there = [self.pods[one.pod].wants for one in self.on(node)]
        for limit, key in ((what.cpu_milli, "cpu_milli"), (what.memory_bytes, "memory_bytes")):
            asked = getattr(wants, key)
            if limit is not None and asked and sum(getattr(one, key) for one in there) + asked > limit:
                return False
        demand = demand_on(wants, what, offer)
        if not isinstance(demand, tuple):
            return False
        return all(self._devices_fit(node, offer, name, count) for name, count in demand)

    def _devices_fit(self, node: int, offer: NodeOffer, name: str, count: int) -> bool:
        one = next(one for one in offer.resources.values() if one.name == name)
        held = {id_ for started in self.on(node) for _, ids in started.holding for id_ in ids}
        free = Counter(device_of(id_) for id_ in one.ids if id_ not in held)
        if any(row.by_memory for row in one.resource.offerings):
            return max(free.values(), default=0) >= count
        return sum(free.values()) >= count

    def start(self, event: Started) -> None:
        wants, number = self.pods[event.pod].wants, self.nodes.kind_of[event.node]
        what, offer = self.nodes.kinds[number], self.offers[number]
        assert not wants.asks_for_gpus or not wants.models or wants.models & what.models
        assert self.fits(event.pod, event.node), "given what was not free"
        for name, ids in event.holding:
            one = offer.resources[name]
            assert set(ids) <= set(one.ids)
            assert len(set(ids)) == len(ids)
            if one.resource.offerings[0].by_memory:
                assert len({device_of(id_) for id_ in ids}) == 1
        held = {id_ for started in self.on(event.node) for _, ids in started.holding for id_ in ids}
        assert not held & {id_ for _, ids in event.holding for id_ in ids}, "given twice"
        self.running[event.pod] = event

    def older_could_have_had_it(self, waiting: set[int], event: Started) -> bool:
        return any(self._is_older(one, event.pod) and self.fits(one, event.node) for one in waiting)

    def _is_older(self, one: int, other: int) -> bool:
        """Made again after a refusal, a pod is new; of two of one moment the order is known without that."""
        first, second = self.made_s[one], self.made_s[other]
        return first < second or (first == second and one < other and not {one, other} & self.refused)


def _check(pods: list[TracePod], nodes: Fleet, played: Played, offers: list[NodeOffer]) -> None:
    ledger = _Ledger(pods, nodes, offers)
    at_all = set(range(len(pods))) - played.never.keys()
    for pod in played.never:
        assert not any(ledger.fits(pod, node) for node in range(len(nodes.names)))
    for pod in at_all:
        assert any(ledger.fits(pod, node) for node in range(len(nodes.names)))
    started: set[int] = set()
    moments = sorted({*(event.at_s for event in played.events), *(pod.created_s for pod in pods)})
    events = {at_s: list(some) for at_s, some in groupby(played.events, key=lambda event: event.at_s)}
    assert [event.at_s for event in played.events] == sorted(event.at_s for event in played.events)
    for now_s in moments:
        for event in events.get(now_s, []):
            match event:
                case Ended():
                    begun = ledger.running.pop(event.pod)
                    assert now_s == begun.at_s + (pods[event.pod].lasts_s or 0.0)
                case Started():
                    before = {
                        one for one in at_all - started if pods[one].created_s <= now_s and one != event.pod
                    }
                    assert not ledger.older_could_have_had_it(before, event)
                    ledger.start(event)
                    started.add(event.pod)
                case Refused():
                    assert "memory" in event.text
                    ledger.made_s[event.pod] = now_s
                    ledger.refused.add(event.pod)
        waiting = {one for one in at_all - started if pods[one].created_s <= now_s}
        assert not any(ledger.fits(one, node) for one in waiting for node in range(len(nodes.names)))
        due = [one for one in ledger.running.values() if pods[one.pod].lasts_s is not None]
        assert all(one.at_s + (pods[one.pod].lasts_s or 0.0) > now_s for one in due)
    assert set(played.waiting) == at_all - started


@settings(max_examples=examples(100), deadline=None)
@given(CASES)
def test_nothing_is_given_twice_and_nobody_waits_for_what_is_free(
    case: tuple[str, list[NodeKind], int, list[TracePod], int],
) -> None:
    policy, kinds, each, pods, seed = case
    _play_and_check(policy, fleet(*kinds, each=each), pods, seed)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", variants(range(4), 4))
def test_the_same_where_many_wait(policy: str, seed: int) -> None:
    """Traces that are too much for the fleet, of few kinds of pods, which hypothesis seldom finds."""
    draw = Random(seed)
    nodes = fleet(*draw.sample(KINDS, 2))
    pods = [
        TracePod(
            f"pod-{number}",
            PodWants(
                cpu_milli=draw.choice([0, 1000, 4000]),
                gpus=draw.choice([1, 1, 1, 2]),
                gpu_milli=draw.choice([120, 240, 250, 480, 600, 1000]),
                models=draw.choice([frozenset(), frozenset(), frozenset({"t4", "a10"})]),
            ),
            float(draw.randrange(40)),
            float(draw.randrange(10, 50)),
        )
        for number in range(90)
    ]
    played = _play_and_check(policy, nodes, pods, seed)
    assert any(isinstance(one, Started) and one.at_s > pods[one.pod].created_s for one in played.events)


def _play_and_check(policy: str, nodes: Fleet, pods: list[TracePod], seed: int) -> Played:
    states = desired(POLICIES[policy], nodes.kinds)
    played = play(pods, nodes, states, draw=drawn(seed))
    _check(pods, nodes, played, [NodeOffer(one) for one in states])
    _check_usage(pods, played)
    return played


def _check_usage(pods: list[TracePod], played: Played) -> None:
    """The figures over time are the sums over the pods."""
    usage = played.usage
    ends = {event.pod: event.at_s for event in played.events if isinstance(event, Ended)}
    ran = [
        (event.pod, ends.get(event.pod, usage.now_s) - event.at_s)
        for event in played.events
        if isinstance(event, Started)
    ]
    asked = sum(played.asked_milli[pod] * lasted_s for pod, lasted_s in ran)
    assert usage.asked_time == pytest.approx(asked, abs=1e-3)
    assert usage.held_time + usage.free_time == pytest.approx(usage.offered * usage.span_s, abs=1e-3)
    assert usage.blocked_time <= usage.free_time + 1e-3
    assert usage.stranded_time <= usage.free_time + 1e-3
    assert usage.peak_held <= usage.offered + 1e-3
    found = summarise("policy", pods, played)
    assert found.at_once + found.waited + found.still_waiting + found.never_fit == len(pods)


def _pod(milli: int, created_s: float = 0.0, lasts_s: float | None = None, gpus: int = 1) -> TracePod:
    return TracePod("pod", PodWants(gpus=gpus, gpu_milli=milli), created_s, lasts_s)


def test_figures_of_a_trace_that_can_be_counted_by_hand() -> None:
    """Two GPUs. One is held from 0 to 10; a pod that wants both waits from 2 to 10 and has them until 15."""
    nodes = fleet(kind("2xt4"))
    pods = [_pod(1000, 0.0, 10.0), _pod(1000, 2.0, 5.0, gpus=2), _pod(500, 15.0, 5.0)]
    played = play(pods, nodes, desired(POLICIES["exclusive"], nodes.kinds))
    found = summarise("policy", pods, played)
    assert (found.at_once, found.waited, found.still_waiting, found.never_fit) == (2, 1, 0, 0)
    assert found.waits is not None
    assert (found.waits.median_s, found.waits.longest_s) == (8.0, 8.0)
    assert played.usage.span_s == 20.0
    use = found.gpus
    assert (use.held * 20, use.asked * 20) == (10 + 10 + 5, 10 + 10 + 2.5)
    assert (use.free * 20, use.blocked * 20) == (10 + 0 + 5, 8)
    assert use.fragmentation == round(8 / 15, 6)
    assert (use.peak_held, use.stranded) == (2, 0)


def test_without_times_the_figures_are_those_of_the_end() -> None:
    nodes = fleet(kind("2xt4"))
    pods = [_pod(600), _pod(600), _pod(600)]
    played = play(pods, nodes, desired(POLICIES["exclusive"], nodes.kinds))
    found = summarise("policy", pods, played)
    assert (found.at_once, found.still_waiting, played.usage.span_s) == (2, 1, 0.0)
    assert not found.gpus.over_time
    assert (found.gpus.held, found.gpus.asked, found.gpus.free) == (2.0, 1.2, 0.0)


def test_what_no_pod_asks_for_and_what_lacks_cpu_is_stranded() -> None:
    nodes = fleet(kind("3xl4", cpus=4))
    layout = "gpus: [{select: {index: [0]}, time-slicing: {replicas: 2}}, {select: rest, exclusive: {}}]"
    pods = [TracePod("pod", PodWants(cpu_milli=3000, gpus=1, gpu_milli=1000), lasts_s=None)] * 2
    played = play(pods, nodes, desired(layout, nodes.kinds))
    assert played.usage.moments[-1].stranded == 2, "one GPU is sliced, and CPU lacks for the other"


def test_equal_pods_are_refused_once_and_not_for_ever() -> None:
    """After a refusal the node lists one GPU's units: the scheduler waits with the others."""
    nodes = fleet(kind("2xt4"))
    pods = [*[_pod(600, float(at)) for at in range(2)], *[_pod(500, 10.0 + at, 50.0) for at in range(5)]]
    played = play(pods, nodes, desired(POLICIES["units"], nodes.kinds))
    assert sum(isinstance(event, Refused) for event in played.events) == 1
    assert played.waiting == (2, 3, 4, 5, 6)


def test_a_refused_pod_is_the_youngest_when_it_is_made_again() -> None:
    """The fourth is refused after the fifth was created, and starts behind it."""
    nodes = fleet(kind("2xt4"))
    sizes = ((430, 9.0), (570, 12.0), (720, 33.0), (720, 29.0), (430, 11.0), (720, 6.0))
    pods = [_pod(milli, float(at), lasts_s) for at, (milli, lasts_s) in enumerate(sizes)]
    played = play(pods, nodes, desired(POLICIES["units"], nodes.kinds))
    assert [(one.at_s, one.pod) for one in played.events if isinstance(one, Refused)] == [(2.0, 2), (9.0, 4)]
    started = [(one.at_s, one.pod) for one in played.events if isinstance(one, Started)]
    assert started == [(0.0, 0), (1.0, 1), (9.0, 2), (13.0, 3), (42.0, 5), (42.0, 4)]


@pytest.mark.parametrize(
    ("wants", "policy", "cause"),
    [
        (PodWants(gpus=1, gpu_milli=510), "halves", None),
        (PodWants(gpus=1, gpu_milli=511), "halves", Cause.SHARE),
        (PodWants(gpus=2, gpu_milli=300), "halves", Cause.GPUS),
        (PodWants(gpus=3, gpu_milli=1000), "exclusive", Cause.GPUS),
        (PodWants(gpus=1, gpu_milli=1000, models=frozenset({"h100"})), "exclusive", Cause.MODEL),
        (PodWants(gpus=1, gpu_milli=1000, cpu_milli=9000), "exclusive", Cause.CPU),
        (PodWants(gpus=1, gpu_milli=1000, memory_bytes=33 * GIB), "exclusive", Cause.MEMORY),
        (PodWants(requests=((GPU, 1),)), "halves", Cause.RESOURCE),
        (PodWants(requests=((SHARED, 2),)), "halves", Cause.REFUSED),
        (PodWants(requests=((GPU, 3),)), "exclusive", Cause.GPUS),
        (PodWants(cpu_milli=1000), "exclusive", None),
    ],
)
def test_why_a_pod_fits_on_no_node(wants: PodWants, policy: str, cause: Cause | None) -> None:
    nodes = fleet(kind("2xt4", 8, 32))
    played = play([TracePod("pod", wants)], nodes, desired(POLICIES[policy], nodes.kinds))
    assert [one.cause for one in played.never.values()] == ([] if cause is None else [cause])


def test_the_same_seed_gives_the_same_and_progress_reaches_the_end() -> None:
    nodes = fleet(kind("1xa10"), each=6)
    pods = [_pod(1000, float(at), 5.0) for at in range(30)]
    states = desired(POLICIES["exclusive"], nodes.kinds)
    told: list[tuple[int, int]] = []
    first = play(pods, nodes, states, draw=drawn(4), on_progress=lambda *at: told.append(at))
    assert first.events == play(pods, nodes, states, draw=drawn(4)).events
    assert first.events != play(pods, nodes, states, draw=drawn(5)).events
    assert (told[0], told[-1]) == ((0, 30), (30, 30))

"""SSP and what it is compared with, by figures that can be counted by hand, and laws."""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.plan.placement.baselines import BestFit, Fgd, Fragments
from partage.plan.placement.mix import WHOLE_MILLI, Mix, PodType, mix_of, prices
from partage.plan.placement.replay import MOST_NODES, drawn_pods, replay, sampled, tuned_scores
from partage.plan.placement.room import Room, choices, first_fit
from partage.plan.placement.ssp import Ssp, SspWay, WasteTable, waste_tables

HALF = PodType(4000, 0, 1, 500)
WHOLE = PodType(8000, 0, 1, WHOLE_MILLI)
EIGHT = PodType(64_000, 0, 8, WHOLE_MILLI)
CPU = PodType(2000)
MIX = mix_of([HALF] * 6 + [WHOLE] * 3 + [EIGHT])


def room(*left: int, cpu: int = 64_000, model: str = "a") -> Room:
    return Room(model, cpu, 10**6, list(left), 128_000, 10**6)


def table(mix: Mix) -> WasteTable:
    return waste_tables(mix, ["a"])["a"]


def test_a_hole_is_wasted_as_far_as_no_pod_fits() -> None:
    only_halves = table(mix_of([HALF]))
    assert [only_halves.of_hole(left) for left in (0, 490, 500, 750, 1000)] == [0, 490, 0, 250, 0]
    thirds = table(mix_of([HALF, PodType(1000, 0, 1, 300)]))
    # Of 600, a half leaves 100 and a third 300: the next third leaves nothing, a half changes nothing.
    assert thirds.of_hole(600) == pytest.approx(50, abs=0.01)


def test_pods_that_may_not_have_a_model_do_not_fill_its_holes() -> None:
    named = PodType(4000, 0, 1, 500, frozenset({"b"}))
    tables = waste_tables(mix_of([named, WHOLE]), ["a", "b"])
    assert tables["a"].of_hole(500) == 500
    assert tables["b"].of_hole(500) == pytest.approx(0, abs=0.01)


def test_the_first_gpus_that_are_just_free_enough_are_taken() -> None:
    assert first_fit(EIGHT, [*([1000, 999] * 8)]) == tuple(range(0, 16, 2))


def test_of_gpus_with_as_much_left_one_is_a_choice() -> None:
    assert [*choices(HALF, [1000, 400, 1000, 500])] == [(0,), (3,)]


def test_a_pod_fits_where_its_model_is() -> None:
    named = replace(HALF, models=frozenset({"a"}))
    assert room(1000, model="a").fits(named)
    assert not room(1000, model="b").fits(named)
    assert room(1000, cpu=HALF.cpu_milli).fits(HALF)
    assert not room(1000, cpu=HALF.cpu_milli - 1).fits(HALF)
    assert room(1000).fits(replace(HALF, memory_mib=10**6))
    assert not room(1000).fits(replace(HALF, memory_mib=10**6 + 1))


def test_a_replay_looks_as_soon_as_pods_have_asked_for_all() -> None:
    assert replay(BestFit(), [room(1000)], [WHOLE]) == [100]
    assert replay(BestFit(), [room(1000)], [HALF]) == []


def test_pods_are_drawn_until_they_ask_for_just_more_than_all() -> None:
    assert len(drawn_pods(mix_of([WHOLE]), [room(*[1000] * 8)] * 125, 0)) == 1300
    assert drawn_pods(mix_of([WHOLE]), [room(0)], 0) == drawn_pods(mix_of([CPU]), [room(1000)], 0) == []


def test_pods_without_gpus_can_use_none() -> None:
    fragments = Fragments(mix_of([CPU, WHOLE]))
    assert fragments.of("a", [1000], 64_000) == 500


def test_pods_of_one_gpu_of_several_and_of_none_are_told_apart() -> None:
    named = replace(WHOLE, models=frozenset({"b"}))
    mix = mix_of([HALF, named, EIGHT, CPU])
    assert mix.single("a") == {HALF: 0.25}
    assert mix.single("b") == {HALF: 0.25, named: 0.25}
    assert mix.without_gpus == {CPU: 0.25}
    assert [row.gpus for row in mix.slots] == [8]


def test_types_beyond_95_of_100_pods_are_not_typical() -> None:
    assert Fragments(mix_of([HALF] * 19 + [WHOLE])).of("a", [500], 64_000) == 0
    assert Fragments(mix_of([HALF] * 18 + [WHOLE] * 2)).of("a", [500], 64_000) == pytest.approx(50)


def test_pods_of_several_gpus_count_only_on_nodes_that_they_can_have() -> None:
    two = PodType(0, 0, 2, WHOLE_MILLI, frozenset({"a"}))
    ssp = Ssp(mix_of([HALF] * 9 + [two]), {"a": 1000, "b": 1000}, exact=False)

    def more(*left: int) -> float:
        return ssp.potential("a", left, 64_000) - ssp.potential("b", left, 64_000)

    assert more(500, 1000) == pytest.approx(0.8 * 0.1 * 1500)
    assert more(1000, 1000) == pytest.approx(0)
    assert more(500) == 0


def test_gpus_without_cpu_beside_them_are_stranded() -> None:
    waste = table(mix_of([HALF]))
    assert waste.of_cpu(1000, 0) == 1000
    assert waste.of_cpu(1000, 4000) == 500
    assert waste.of_cpu(1000, 8000) == 0
    assert waste.of_cpu(0, 0) == waste.of_cpu(-1, 0) == 0
    assert waste.of_cpu(1000, 6000) == pytest.approx(500)
    assert waste.of_cpu(8000, 10**9) == pytest.approx(0, abs=1)


def test_a_model_is_dear_as_far_as_pods_name_it() -> None:
    mix = mix_of([PodType(0, 0, 1, 1000, frozenset({"a", "b"})), PodType(0, 0, 1, 1000)])
    # Half of the demand names a and b, which are half of the cluster of 4 GPUs: 2 GPUs for 2.
    assert prices(mix, {"a": 1000, "b": 1000, "c": 2000}) == {"a": 1.0, "b": 1.0, "c": 0.0}
    assert prices(mix_of([CPU]), {"a": 1000}) == {"a": 0.0}


def test_ssp_makes_holes_that_others_fill() -> None:
    six = PodType(4000, 0, 1, 600)
    ssp = Ssp(mix_of([HALF, six]), {"a": 100_000}, exact=True)
    # Nobody fills the 400 that six leave of a whole GPU; the 500 that a half leaves, a half does.
    assert ssp.best(six, room(1000, 600))[1] == (1,)
    assert ssp.best(HALF, room(600, 1000))[1] == (1,)
    assert Ssp(mix_of([HALF, six]), {"a": 100_000}, exact=False).best(six, room(1000, 600))[1] == (0,)


def test_ssp_leaves_whole_nodes_to_those_who_need_them() -> None:
    ssp = Ssp(MIX, {"a": 100_000}, exact=True)
    seven = ssp.best(WHOLE, room(0, *[1000] * 7))[0]
    assert ssp.best(WHOLE, room(*[1000] * 8))[0] < seven
    unused = room(*[1000] * 4, cpu=128_000)
    assert ssp.best(WHOLE, unused)[0] == pytest.approx(ssp.best(WHOLE, room(*[1000] * 4))[0] - 7.5, abs=1)


def test_ssp_sends_pods_without_gpus_where_no_gpu_is_left() -> None:
    ssp = Ssp(mix_of([HALF, WHOLE, CPU]), {"a": 100_000}, exact=False)
    full, empty = room(0, 0, cpu=20_000), room(1000, 1000, cpu=16_000)
    assert ssp.best(CPU, full)[0] > ssp.best(CPU, empty)[0]
    assert ssp.best(CPU, full)[0] > ssp.best(CPU, room(0, 0, cpu=60_000))[0]


def test_ssp_spares_what_others_name() -> None:
    named = PodType(4000, 0, 1, 500, frozenset({"a"}))
    ssp = Ssp(mix_of([named, HALF]), {"a": 1000, "b": 3000}, exact=False)
    assert ssp.best(HALF, room(1000, model="b"))[0] > ssp.best(HALF, room(1000, model="a"))[0]


def test_the_published_scores() -> None:
    assert BestFit().best(HALF, room(1000, 500, cpu=36_000)) == (int(100 * (1 - 0.125 - 0.0625)), (1,))
    fgd = Fgd(mix_of([HALF, WHOLE]))
    # 500 less that a whole pod, every second one, cannot use: 100 / (1 + exp(-0.25)).
    assert fgd.best(HALF, room(500, 1000)) == (56, (0,))
    assert fgd.best(HALF, room(1000, 500)) == (56, (1,))
    assert fgd.best(HALF, room(1000))[0] < 50 < fgd.best(HALF, room(500))[0]


ROOMS = st.builds(
    Room,
    st.sampled_from(["a", "b"]),
    st.integers(0, 128_000),
    st.just(10**6),
    st.lists(st.integers(0, 100).map(lambda part: part * 10), min_size=1, max_size=8),
    st.just(128_000),
    st.just(10**6),
)
PODS = st.one_of(
    st.builds(PodType, st.integers(0, 32_000), st.just(0), st.just(1), st.integers(1, 1000)),
    st.builds(PodType, st.integers(0, 96_000), st.just(0), st.integers(2, 8), st.just(1000)),
    st.builds(PodType, st.integers(0, 32_000)),
)


@cache
def live() -> Ssp:
    """Its table takes a quarter of a second, which each worker would pay for while it collects the tests."""
    return Ssp(MIX, {"a": 5000, "b": 5000}, exact=False)


@cache
def all_scores() -> tuple[Ssp | Fgd | BestFit, ...]:
    return live(), Ssp(MIX, {"a": 1, "b": 1}, exact=True), Fgd(MIX), BestFit()


@given(PODS, ROOMS)
def test_the_gpus_that_are_chosen_are_free_and_different(pod: PodType, node: Room) -> None:
    before = list(node.left)
    for scores in all_scores() if node.fits(pod) else ():
        _, gpus = scores.best(pod, node)
        assert len({*gpus}) == len(gpus) == pod.gpus
        assert all(node.left[index] >= pod.milli for index in gpus)
        assert node.left == before


@given(PODS, ROOMS)
def test_a_pod_takes_what_it_asks_for(pod: PodType, node: Room) -> None:
    if node.fits(pod):
        before = node.cpu_milli, node.memory_mib, sum(node.left)
        gpus = first_fit(pod, node.left)
        assert gpus in list(choices(pod, node.left)) or pod.gpus == 1
        node.take(pod, gpus)
        assert min(node.left) >= 0
        now = node.cpu_milli + pod.cpu_milli, node.memory_mib + pod.memory_mib, sum(node.left) + pod.demand
        assert now == before


@given(ROOMS)
def test_what_is_expected_to_be_wasted_is_between_nothing_and_all(node: Room) -> None:
    wasted = live().potential(node.model, tuple(node.left), node.cpu_milli)
    slots = 0.8 * sum(row.part for row in MIX.slots)
    assert -1e-6 <= wasted <= sum(node.left) * (1 + slots) + 1e-6


def test_without_pods_nothing_is_known() -> None:
    with pytest.raises(ValueError, match="no pods"):
        mix_of([])


TRACE = os.environ.get("PARTAGE_TRACE", "")


@pytest.mark.skipif(not TRACE, reason="PARTAGE_TRACE names no folder with Alibaba's GPU trace of 2023")
def test_the_tables_of_a_production_trace() -> None:
    """Figures of an independent implementation. Seen 2026-11-28: all of them, to the last digit."""
    with (Path(TRACE) / "openb_pod_list_default.csv").open() as file:
        rows = list(csv.DictReader(file))
    mix = mix_of(
        PodType(int(row["cpu_milli"]), 0, int(row["num_gpu"]), min(1000, int(row["gpu_milli"])))
        for row in rows
    )
    waste = table(mix)
    holes = {50: 48.81, 100: 98.80, 190: 146.49, 300: 163.60, 500: 80.58, 810: 70.25, 1000: 57.83}
    assert {left: round(waste.of_hole(left), 2) for left in holes} == holes
    assert waste.of_cpu(8000, 0) == pytest.approx(7872, rel=0.01)
    assert waste.of_cpu(8000, 12_000) == pytest.approx(6488, rel=0.03)
    rows_of = [(row.gpus, round(row.cpu_milli / 1000, 1), round(row.part, 4)) for row in mix.slots]
    assert sorted(rows_of) == [(2, 16.9, 0.0020), (4, 37.8, 0.0018), (8, 80.3, 0.0054)]


def test_the_way_is_the_one_that_gives_most_in_replays() -> None:
    nodes = [room(*[1000] * 8, cpu=128_000) for _ in range(20)]
    supply = {"a": 160_000}
    odd = mix_of([PodType(2000, 0, 1, milli) for milli in (600, 600, 350, 350, 350, 250, 250, 450, 450)])
    found = tuned_scores(odd, nodes, supply=supply).way
    pods = drawn_pods(odd, nodes, 0)
    given = {
        part: replay(Ssp(odd, supply, exact=False, way=SspWay(part)), sampled(nodes), pods)
        for part in (0.0, 0.7)
    }
    assert given[found.fragments] == max(given.values()) != min(given.values())
    assert tuned_scores(mix_of([CPU]), nodes, supply=supply).way == SspWay()


def test_a_part_of_the_potential_can_be_the_measure_of_fgd() -> None:
    """500 are of no use to whole pods, a third of those that want GPUs; and without CPU nothing is."""
    fragments = Fragments(mix_of([HALF] * 2 + [WHOLE]))
    assert fragments.of("a", (500, 1000), 64_000) == pytest.approx(500 / 3)
    assert fragments.of("a", (500, 1000), 4000) == pytest.approx(500)
    assert fragments.of("a", (500, 1000), 3000) == 1500
    named = PodType(1000, 0, 2, 1000, frozenset({"a"}))
    assert Fragments(mix_of([named])).of("a", (500, 1000, 1000), 1000) == 500
    assert Fragments(mix_of([named])).of("b", (1000, 1000, 1000), 1000) == 3000
    assert Fragments(mix_of([named])).of("a", (500, 1000), 1000) == 1500
    spoilt = Ssp(MIX, {"a": 1000}, exact=False).potential("a", (500, 1000), 9000)
    half = Ssp(MIX, {"a": 1000}, exact=False, way=SspWay(0.5)).potential("a", (500, 1000), 9000)
    assert half == pytest.approx((spoilt + Fragments(MIX).of("a", (500, 1000), 9000)) / 2)


def test_a_replay_does_not_depend_on_the_order_of_nodes_or_on_what_is_used() -> None:
    nodes = [room(*[1000] * gpus, cpu=128_000, model=model) for gpus in (1, 2, 8) for model in "ab"]
    used = [room(*[500] * len(one.left), cpu=1000, model=one.model) for one in reversed(nodes)]
    assert sampled(nodes) == sampled(used)
    assert len(sampled(nodes * 300)) == MOST_NODES
    pods = drawn_pods(MIX, nodes, 0)
    assert pods != drawn_pods(MIX, nodes, 1)
    assert pods == drawn_pods(Mix(dict(reversed(list(MIX.parts.items())))), nodes, 0)
    assert sum(pod.demand for pod in pods) >= 1.3 * sum(sum(one.left) for one in nodes)
    assert drawn_pods(mix_of([CPU]), nodes, 0) == []
    at_full, at_end = replay(BestFit(), sampled(nodes), pods)
    assert 0 < at_full <= at_end <= 100

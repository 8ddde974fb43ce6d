"""The mix is estimated from the last pods, and never takes what is rare for impossible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.plan.placement.mix import PodType, mix_of
from partage.plan.placement.room import NO
from partage.scheduler.decide.asks import KindAmount, PodAsk
from partage.scheduler.decide.online_mix import FLOOR, MixWindow
from partage.scheduler.protocol import BEST, ranked

MODELS = frozenset({"a", "b"})
OF = {
    "any": {"a": KindAmount(1, 500), "b": KindAmount(1, 500)},
    "unlike": {"a": KindAmount(1, 500), "b": KindAmount(1, 250)},
    "named": {"a": KindAmount(1, 1000)},
    "four": {"a": KindAmount(4, 1000), "b": KindAmount(4, 1000)},
    "other": {},
}


def ask(kind: str, cpu: int = 1000) -> PodAsk:
    return PodAsk(cpu, 0, (), ((kind, 1),) if kind else ())


def expected(*asks: PodAsk, window: MixWindow | None = None):
    found = MixWindow() if window is None else window
    for one in asks:
        found.add(one)
    return found.expected(lambda one: OF[one.devices[0][0]] if one.devices else {}, MODELS, found.counts)


def test_where_an_amount_is_the_same_of_all_models_it_is_the_mix_of_the_what_if() -> None:
    found = expected(ask("any"), ask("any"), ask(""), ask("named"))
    plain = mix_of(
        [
            PodType(1000, 0, 1, 500),
            PodType(1000, 0, 1, 500),
            PodType(1000),
            PodType(1000, 0, 1, 1000, frozenset({"a"})),
        ]
    )
    for mix in (found.tables, found.priced):
        assert {pod: part for pod, part in mix.parts.items() if pod.gpus < 2} == plain.parts
        assert {pod.gpus: part for pod, part in mix.parts.items() if pod.gpus > 1} == dict.fromkeys(
            (2, 4, 8), pytest.approx(FLOOR)
        )


def test_an_amount_that_is_another_part_of_each_model_is_priced_once() -> None:
    found = expected(ask("unlike"))
    singles = {pod.models: pod.milli for pod in found.tables.parts if pod.gpus == 1}
    assert singles == {frozenset({"a"}): 500, frozenset({"b"}): 250}
    assert [(pod.models, pod.milli) for pod in found.priced.parts if pod.gpus == 1] == [(frozenset(), 375)]


def test_several_gpus_count_as_they_come_once_they_are_not_rare() -> None:
    found = expected(ask("four", 30_000), ask("any"))
    parts = {pod.gpus: (pod.cpu_milli, part) for pod, part in found.tables.parts.items() if pod.gpus > 1}
    assert parts[4] == (30_000, 0.5)
    assert parts[2] == (15_000, pytest.approx(FLOOR))


def test_a_model_that_was_named_once_keeps_its_floor_when_the_window_has_forgotten_it() -> None:
    window = MixWindow(2)
    expected(ask("named"), window=window)
    found = expected(ask("any"), ask("any"), window=window)
    assert len(window) == 2
    (part,) = [part for pod, part in found.priced.parts.items() if pod.models == {"a"}]
    assert part == pytest.approx(FLOOR)


def test_devices_that_are_no_gpus_are_left_out() -> None:
    assert sum(expected(ask("other")).tables.parts.values()) == pytest.approx(3 * FLOOR)


@given(st.lists(st.sampled_from([float("-inf"), -3.5, -1e-6, 0.0, 1.25, *map(float, range(30))]), min_size=1))
def test_ranks_keep_order_the_best_stands_alone_and_equals_are_equal(scores: list[float]) -> None:
    ranks = ranked(scores)
    assert all(rank in range(11) for rank in ranks)
    best = max(scores)
    for score, rank in zip(scores, ranks, strict=True):
        assert (rank == BEST) is (score == best != NO and len(set(scores)) > 1)
        assert rank == 0 or score != NO
        for other, its in zip(scores, ranks, strict=True):
            assert rank >= its or score < other
            assert score != other or rank == its


def test_ranks_are_spread_over_all_numbers() -> None:
    assert ranked([5.0, 4.0]) == [10, 9]
    assert ranked([4.0, 3.0, 2.0, 1.0]) == [10, 9, 6, 3]
    assert ranked([float(-number) for number in range(11)]) == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert ranked([1.0, 1.0]) == [0, 0]
    assert ranked([NO, 1.0, 2.0]) == [0, 9, 10]
    assert ranked([NO, 1.0]) == [0, 10]
    assert ranked([]) == []

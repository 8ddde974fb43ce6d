"""What samples come to, by hand."""

import pytest

from partage.lab.bench.model import BenchCell, Repeat, TenantSample
from partage.lab.bench.summary import (
    Spread,
    figures,
    latency_ms,
    quantile,
    throughput,
    time_of_each,
    total_time,
)
from partage.lab.place import TenantMode
from tests.lab.bench import runs
from tests.lab.bench.runs import INFERENCE, SATURATING, SMALL, pi


def _found(*cells):
    return {figure.name: figure for figure in figures(runs.bench(*cells))}


def test_what_was_not_measured_has_no_row():
    assert _found() == {}
    assert _found(pi(SMALL, TenantMode.MPS, 4, (1.0,))) == {}
    bad = BenchCell(SMALL, TenantMode.TIME_SLICING, 4, (runs.failed("oom", "no", 4),), 1000, 10)
    assert _found(pi(SMALL, TenantMode.MPS, 4, (1.0,)), bad) == {}


def test_throughput_under_mps_is_compared_with_time_slicing():
    found = _found(
        pi(SMALL, TenantMode.MPS, 4, (1.0, 2.0, 4.0)), pi(SMALL, TenantMode.TIME_SLICING, 4, (4.0, 4.0, 8.0))
    )
    (figure,) = found.values()
    assert "MPS / time-sliced" in figure.name
    assert "4 processes" in figure.name
    assert figure.spread == Spread(2.0, 1.0, 8.0, 3)


def test_the_cost_of_mps_for_saturating_kernels_is_a_percentage():
    cells = pi(SATURATING, TenantMode.MPS, 2, (1.02,)), pi(SATURATING, TenantMode.TIME_SLICING, 2, (1.0,))
    (figure,) = _found(*cells).values()
    assert figure.unit == "percent"
    assert figure.spread.median == pytest.approx(2.0)


def test_the_guard_is_judged_by_work_and_by_start():
    found = _found(
        pi(SMALL, TenantMode.WITH_GUARD, 1, (1.01,)), pi(SMALL, TenantMode.WITHOUT_GUARD, 1, (1.0,))
    )
    cost, start = found.values()
    assert cost.spread.median == pytest.approx(1.0)
    assert (start.unit, start.spread.median) == ("s", 0.0)


def test_a_failed_repeat_does_not_count():
    cell = pi(SMALL, TenantMode.MPS, 2, (1.0, 3.0))
    with_failure = runs.replace_repeats(cell, (*cell.repeats, runs.failed("died", "", 2)))
    assert total_time(with_failure) == Spread(2.0, 1.0, 3.0, 2)


def test_in_parallel_the_time_is_from_the_first_start_to_the_last_end():
    cell = runs.replace_repeats(
        pi(SMALL, TenantMode.MPS, 2, (1.0,)), (Repeat(1, (TenantSample(0.0, 2.0), TenantSample(1.0, 5.0))),)
    )
    assert total_time(cell).median == 5.0
    assert time_of_each(cell).median == 3.0
    assert throughput(cell).median == 1000 * 10 * 2 / 5.0
    assert cell.repeats[0].overlap == pytest.approx(0.2)


def test_one_after_the_other_the_time_between_turns_does_not_count():
    cell = pi(SMALL, TenantMode.SEQUENTIAL, 3, (6.0,))
    assert cell.repeats[0].makespan_s == pytest.approx(6.2)
    assert total_time(cell).median == pytest.approx(6.0)


def test_latencies_are_those_of_all_processes():
    cell = runs.inference(TenantMode.TIME_SLICING, 4, 100, 900)
    assert latency_ms(cell, 50) == Spread(0.1, 0.1, 0.1, 2)
    assert latency_ms(cell, 99).median == 0.9
    assert throughput(cell).median == 400
    (figure,) = _found(cell).values()
    assert figure.name == "inference, 3 neighbours, time-slicing: p99 latency"
    assert cell.experiment is INFERENCE


@pytest.mark.parametrize(("percent", "value"), [(1, 1), (50, 50), (99, 99), (100, 100)])
def test_a_quantile_is_a_value_that_was_seen(percent, value):
    assert quantile(range(100, 0, -1), percent) == value
    assert quantile([7.0], percent) == 7.0

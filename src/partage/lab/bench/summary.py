"""The figures of a run: medians with their spread, and ratios of them. Pure.

A ratio is that of two medians. Its spread is the widest that the samples allow: the lowest by the highest,
and the other way round. What was not measured has no figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from partage.lab.bench.model import BenchCell, BenchReport, Experiment, Repeat
from partage.lab.place import TenantMode
from partage.text import count_of
from partage.values import Frozen


class Spread(Frozen):
    """median, lowest and highest of ``count`` repeats."""

    median: float
    low: float
    high: float
    count: int


class BenchFigure(Frozen):
    """One figure of the summary. unit: ``times``, ``percent``, ``s``, ``ms``."""

    name: str
    unit: str
    spread: Spread


def spread_of(values: Sequence[float]) -> Spread:
    """Of one value or more."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def total_time(cell: BenchCell) -> Spread:
    """Seconds until all processes were done."""
    return spread_of(cell.times_s)


def time_of_each(cell: BenchCell) -> Spread:
    """Seconds that one process took, the median of those of a repeat."""
    return spread_of([statistics.median(sample.seconds for sample in repeat.samples) for repeat in cell.good])


def throughput(cell: BenchCell) -> Spread:
    """Of all processes together: points a second, or requests a second."""
    if cell.experiment is Experiment.INFERENCE:
        return spread_of(
            [
                sum((sample.requests or 0) / sample.seconds for sample in repeat.samples)
                for repeat in cell.good
            ]
        )
    work = cell.points * cell.rounds * cell.processes
    return spread_of([work / seconds for seconds in cell.times_s])


def latency_ms(cell: BenchCell, percentile: int) -> Spread:
    """A percentile of the latencies of all processes of a repeat; over the repeats."""
    return spread_of([quantile(_latencies_us(repeat), percentile) / 1e3 for repeat in cell.good])


def quantile(values: Sequence[float], percentile: int) -> float:
    """The smallest value that ``percentile`` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percentile // 100) - 1)]


def three_digits(value: float) -> str:
    """The number with three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".removesuffix(".")


def _latencies_us(repeat: Repeat) -> list[float]:
    return [value for sample in repeat.samples for value in sample.latencies_us]


def ratio(above: Spread, below: Spread) -> Spread:
    """Of the medians, with the widest spread."""
    return Spread(
        above.median / below.median,
        above.low / below.high,
        above.high / below.low,
        min(above.count, below.count),
    )


def figures(bench: BenchReport) -> list[BenchFigure]:
    """All figures of a run."""
    found: list[BenchFigure] = []
    for processes in sorted({cell.processes for cell in bench.cells if cell.processes > 1}):
        found += _shared(bench, processes)
    found += _latencies(bench)
    found += _guard(bench)
    return found


def _shared(bench: BenchReport, processes: int) -> Iterator[BenchFigure]:
    """MPS, MIG and time-slicing against each other, for the pi program."""
    at = f"{processes} processes"
    pairs = (
        (TenantMode.MPS, TenantMode.TIME_SLICING, "throughput under MPS / time-sliced"),
        (TenantMode.MIG, TenantMode.TIME_SLICING, "throughput on MIG devices / time-sliced"),
        (TenantMode.TIME_SLICING, TenantMode.SEQUENTIAL, "throughput time-sliced / in turn"),
        (TenantMode.PARALLEL, TenantMode.SEQUENTIAL, "throughput in parallel / in turn"),
    )
    for above, below, words in pairs:
        key = (Experiment.SMALL, above, below, processes)
        yield from _compared(bench, key, throughput, f"small kernels, {at}: {words}")
    name = f"saturating kernels, {at}: what MPS costs over time-slicing"
    key = (Experiment.SATURATING, TenantMode.MPS, TenantMode.TIME_SLICING, processes)
    yield from map(_as_cost, _compared(bench, key, total_time, name))
    name = f"saturating kernels, {at}: what time-slicing costs over turns"
    key = (Experiment.SATURATING, TenantMode.TIME_SLICING, TenantMode.SEQUENTIAL, processes)
    yield from map(_as_cost, _compared(bench, key, total_time, name))


def _compared(
    bench: BenchReport,
    key: tuple[Experiment, TenantMode, TenantMode, int],
    measure: Callable[[BenchCell], Spread],
    name: str,
) -> Iterator[BenchFigure]:
    experiment, above, below, processes = key
    cell, other = bench.cell(experiment, above, processes), bench.cell(experiment, below, processes)
    if cell is not None and other is not None:
        yield BenchFigure(name, "times", ratio(measure(cell), measure(other)))


def _as_cost(figure: BenchFigure) -> BenchFigure:
    """1.02 times as long is 2 percent more."""
    low, high = (100 * (value - 1) for value in (figure.spread.low, figure.spread.high))
    cost = Spread(100 * (figure.spread.median - 1), low, high, figure.spread.count)
    return BenchFigure(figure.name, "percent", cost)


def _latencies(bench: BenchReport) -> Iterator[BenchFigure]:
    for cell in bench.cells:
        if cell.experiment is not Experiment.INFERENCE or not cell.good:
            continue
        neighbours = cell.processes - 1
        with_whom = f", {count_of(neighbours, 'neighbour')}, {cell.mode}" if neighbours else f", {cell.mode}"
        yield BenchFigure(f"inference{with_whom}: p99 latency", "ms", latency_ms(cell, 99))


def _guard(bench: BenchReport) -> Iterator[BenchFigure]:
    """What the guard costs: computing, and the start of a process."""
    for experiment, words in ((Experiment.SMALL, "small"), (Experiment.SATURATING, "saturating")):
        key = (experiment, TenantMode.WITH_GUARD, TenantMode.WITHOUT_GUARD, 1)
        name = f"{words} kernels: what the guard costs"
        yield from map(_as_cost, _compared(bench, key, total_time, name))
    with_it, without = (
        bench.cell(Experiment.SMALL, mode, 1) for mode in (TenantMode.WITH_GUARD, TenantMode.WITHOUT_GUARD)
    )
    if with_it is None or without is None:
        return
    more, less = _starts(with_it), _starts(without)
    difference = Spread(
        more.median - less.median, more.low - less.high, more.high - less.low, min(more.count, less.count)
    )
    yield BenchFigure("start of a process until it can compute: what the guard adds", "s", difference)


def _starts(cell: BenchCell) -> Spread:
    return spread_of([sample.start_s or 0.0 for repeat in cell.good for sample in repeat.samples])

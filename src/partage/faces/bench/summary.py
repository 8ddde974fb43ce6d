"""What the samples come to: medians with their spread, and the ratios that matter. Pure; nothing is guessed.

A ratio is that of two medians. Its spread is the widest that the samples allow: the lowest by the highest,
and the other way round. What was not measured has no row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from partage.faces.bench.model import Bench, Cell, Experiment, Mode, Repeat
from partage.faces.words import count_of


@dataclass(frozen=True, slots=True)
class Spread:
    """median, lowest and highest of ``count`` repeats."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure of the summary. unit: ``times``, ``percent``, ``s``, ``ms``."""

    name: str
    unit: str
    spread: Spread


def spread_of(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def times(cell: Cell) -> Spread:
    """Seconds until all processes were done."""
    return spread_of(cell.times_s)


def each_took(cell: Cell) -> Spread:
    """Seconds that one process took, the median of those of a repeat."""
    return spread_of([statistics.median(turn.seconds for turn in repeat.turns) for repeat in cell.good])


def throughput(cell: Cell) -> Spread:
    """Of all processes together: points a second, or requests a second."""
    if cell.key.experiment is Experiment.INFERENCE:
        return spread_of(
            [sum((turn.requests or 0) / turn.seconds for turn in one.turns) for one in cell.good]
        )
    work = cell.points * cell.rounds * cell.key.processes
    return spread_of([work / seconds for seconds in cell.times_s])


def latency_ms(cell: Cell, percentile: int) -> Spread:
    """A percentile of the latencies of all processes of a repeat; over the repeats."""
    return spread_of([quantile(_latencies_us(one), percentile) / 1e3 for one in cell.good])


def quantile(values: Sequence[float], percentile: int) -> float:
    """The smallest value that ``percentile`` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percentile // 100) - 1)]


def digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".removesuffix(".")


def _latencies_us(repeat: Repeat) -> list[float]:
    return [value for turn in repeat.turns for value in turn.latencies_us]


def ratio(above: Spread, below: Spread) -> Spread:
    """Of the medians, with the widest spread."""
    return Spread(
        above.median / below.median,
        above.low / below.high,
        above.high / below.low,
        min(above.count, below.count),
    )


def findings(bench: Bench) -> list[Finding]:
    """Everything that can be said of this run."""
    found: list[Finding] = []
    for processes in sorted({cell.key.processes for cell in bench.cells if cell.key.processes > 1}):
        found += _shared(bench, processes)
    found += _latencies(bench)
    found += _guard(bench)
    return found


def _shared(bench: Bench, processes: int) -> Iterator[Finding]:
    """MPS, MIG and time-slicing against each other, for the pi program."""
    at = f"{processes} processes"
    pairs = (
        (Mode.MPS, Mode.TIME_SLICING, "throughput under MPS / time-sliced"),
        (Mode.MIG, Mode.TIME_SLICING, "throughput on MIG devices / time-sliced"),
        (Mode.TIME_SLICING, Mode.SEQUENTIAL, "throughput time-sliced / in turn"),
        (Mode.PARALLEL, Mode.SEQUENTIAL, "throughput in parallel / in turn"),
    )
    for above, below, words in pairs:
        key = (Experiment.SMALL, above, below, processes)
        yield from _compared(bench, key, throughput, f"small kernels, {at}: {words}")
    name = f"saturating kernels, {at}: what MPS costs over time-slicing"
    key = (Experiment.SATURATING, Mode.MPS, Mode.TIME_SLICING, processes)
    yield from map(_as_cost, _compared(bench, key, times, name))
    name = f"saturating kernels, {at}: what time-slicing costs over turns"
    key = (Experiment.SATURATING, Mode.TIME_SLICING, Mode.SEQUENTIAL, processes)
    yield from map(_as_cost, _compared(bench, key, times, name))


def _compared(
    bench: Bench,
    key: tuple[Experiment, Mode, Mode, int],
    figure: Callable[[Cell], Spread],
    name: str,
) -> Iterator[Finding]:
    experiment, above, below, processes = key
    one, other = bench.cell(experiment, above, processes), bench.cell(experiment, below, processes)
    if one is not None and other is not None:
        yield Finding(name, "times", ratio(figure(one), figure(other)))


def _as_cost(finding: Finding) -> Finding:
    """1.02 times as long is 2 percent more."""
    low, high = (100 * (value - 1) for value in (finding.spread.low, finding.spread.high))
    cost = Spread(100 * (finding.spread.median - 1), low, high, finding.spread.count)
    return Finding(finding.name, "percent", cost)


def _latencies(bench: Bench) -> Iterator[Finding]:
    for cell in bench.cells:
        if cell.key.experiment is not Experiment.INFERENCE or not cell.good:
            continue
        neighbours = cell.key.processes - 1
        with_whom = (
            f", {count_of(neighbours, 'neighbour')}, {cell.key.mode}" if neighbours else f", {cell.key.mode}"
        )
        yield Finding(f"inference{with_whom}: p99 latency", "ms", latency_ms(cell, 99))


def _guard(bench: Bench) -> Iterator[Finding]:
    """What the guard costs: computing, and the start of a process."""
    for experiment, words in ((Experiment.SMALL, "small"), (Experiment.SATURATING, "saturating")):
        key = (experiment, Mode.WITH_GUARD, Mode.WITHOUT_GUARD, 1)
        name = f"{words} kernels: what the guard costs"
        yield from map(_as_cost, _compared(bench, key, times, name))
    with_it, without = (
        bench.cell(Experiment.SMALL, mode, 1) for mode in (Mode.WITH_GUARD, Mode.WITHOUT_GUARD)
    )
    if with_it is None or without is None:
        return
    more, less = _starts(with_it), _starts(without)
    difference = Spread(
        more.median - less.median, more.low - less.high, more.high - less.low, min(more.count, less.count)
    )
    yield Finding("start of a process until it can compute: what the guard adds", "s", difference)


def _starts(cell: Cell) -> Spread:
    return spread_of([turn.start_s or 0.0 for repeat in cell.good for turn in repeat.turns])

"""A run as tables in the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.faces.bench.model import EXPERIMENT_WORDS, MODE_WORDS, Bench, Cell, Experiment, Mode
from partage.faces.bench.summary import (
    Finding,
    Spread,
    digits,
    each_took,
    findings,
    latency_ms,
    ratio,
    throughput,
    times,
)
from partage.faces.render.tables import plain_table
from partage.units import format_bytes

_GUARD = (Mode.WITHOUT_GUARD, Mode.WITH_GUARD)


def lines(bench: Bench) -> Iterator[RenderableType]:
    """Everything, from the machine to the ratios."""
    yield from map(Text, _head(bench))
    for experiment in Experiment:
        cells = [one for one in bench.cells if one.key.experiment is experiment]
        if cells:
            yield Text()
            yield (
                _latency_table(bench, cells)
                if experiment is Experiment.INFERENCE
                else _pi_table(bench, cells)
            )
    if bench.memory:
        yield Text()
        yield _memory_table(bench)
    if found := findings(bench):
        yield Text()
        yield _findings_table(found)
    yield from (Text(f"! {remark}", style="yellow") for remark in (*bench.remarks, *_told_by(bench)))


def _head(bench: Bench) -> Iterator[str]:
    machine = bench.machine
    if machine.gpu:
        memory = format_bytes(machine.memory_bytes)
        driver = f"driver {machine.driver}, CUDA {machine.cuda}"
        yield f"{machine.gpu}, {memory}, {driver}, {machine.compute_mode} mode"
    yield f"{machine.processor or machine.system}, {machine.processors} processors"
    versions = ", ".join(f"{name} {version}" for name, version in bench.versions.items() if version)
    yield f"{bench.at}, {versions}"
    yield " ".join(bench.command)


def _pi_table(bench: Bench, cells: list[Cell]) -> Table:
    title = f"{EXPERIMENT_WORDS[cells[0].key.experiment].capitalize()} ({cells[0].points} points a round)"
    table = plain_table(
        title, "Processes", "How", "All done, s", "Each, s", "Of alone", "Together", "Repeats",
        right=("Processes", "All done, s", "Each, s", "Of alone", "Together", "Repeats"),
    )  # fmt: skip
    for cell in cells:
        if not cell.good:
            _failed_row(table, cell)
            continue
        overlap = min(repeat.overlap for repeat in cell.good)
        parallel = cell.key.processes > 1 and cell.key.mode is not Mode.SEQUENTIAL
        table.add_row(
            str(cell.key.processes),
            MODE_WORDS[cell.key.mode],
            _range(times(cell)),
            digits(each_took(cell).median),
            _of_alone(bench, cell, throughput),
            f"{overlap:.0%}" if parallel else "",
            _repeats(cell),
        )
    return table


def _latency_table(bench: Bench, cells: list[Cell]) -> Table:
    table = plain_table(
        "Small-model inference",
        "Processes", "How", "p50, ms", "p99, ms", "Requests/s", "Of alone", "Repeats",
        right=("Processes", "p50, ms", "p99, ms", "Requests/s", "Of alone", "Repeats"),
    )  # fmt: skip
    for cell in cells:
        if not cell.good:
            _failed_row(table, cell)
            continue
        table.add_row(
            str(cell.key.processes),
            MODE_WORDS[cell.key.mode],
            _range(latency_ms(cell, 50)),
            _range(latency_ms(cell, 99)),
            f"{throughput(cell).median:.0f}",
            _of_alone(bench, cell, throughput),
            _repeats(cell),
        )
    return table


def _failed_row(table: Table, cell: Cell) -> None:
    failure = next(turn.failure for repeat in cell.repeats for turn in repeat.turns if turn.failure)
    columns = [str(cell.key.processes), MODE_WORDS[cell.key.mode], failure.what]
    table.add_row(*columns, *[""] * (len(table.columns) - len(columns) - 1), _repeats(cell), style="red")


def _of_alone(bench: Bench, cell: Cell, figure: Callable[[Cell], Spread]) -> str:
    """Throughput of all together, by that of one process alone."""
    alone = bench.cell(cell.key.experiment, Mode.ALONE, 1)
    return "" if alone is None else f"{ratio(figure(cell), figure(alone)).median:.2f}"


def _repeats(cell: Cell) -> str:
    bad = len(cell.repeats) - len(cell.good)
    return f"{len(cell.good)}" + (f", {bad} failed" if bad else "")


def _range(spread: Spread) -> str:
    return f"{digits(spread.median)} ({digits(spread.low)}-{digits(spread.high)})"


def _memory_table(bench: Bench) -> Table:
    table = plain_table(
        "Tensors of a third of the limit", "How", "Limit", "By", "Promise", "Tensors", "Promised", "Seen"
    )
    for one in bench.memory:
        bad = one.expected not in ("", one.seen)
        table.add_row(
            MODE_WORDS[one.mode],
            format_bytes(one.limit_bytes),
            one.source,
            one.promise,
            f"{one.thirds:g}",
            one.expected or "nothing",
            Text(one.seen, style="red" if bad else "green"),
        )
    return table


def _findings_table(found: list[Finding]) -> Table:
    table = plain_table(
        "What it comes to", "Figure", "Median", "From-to", "Repeats", right=("Median", "Repeats")
    )
    for finding in found:
        unit = {"times": "x", "percent": " %", "s": " s", "ms": " ms"}[finding.unit]
        spread, places = finding.spread, 3 if finding.unit in ("s", "ms") else 2
        table.add_row(
            finding.name,
            f"{spread.median:.{places}f}{unit}",
            f"{spread.low:.{places}f} to {spread.high:.{places}f}",
            str(spread.count),
        )
    return table


def _told_by(bench: Bench) -> Iterator[str]:
    """What the samples themselves warn of."""
    failures = Counter(
        f"{cell.key}: {turn.failure.what}, {turn.failure.message}"
        for cell in bench.cells
        for repeat in cell.repeats
        for turn in repeat.turns
        if turn.failure
    )
    for text, count in failures.items():
        yield text + (f" ({count} times)" if count > 1 else "")
    yield from _wrong_pi(bench)
    for one in bench.memory:
        if one.seen not in ("fits", "oom"):
            yield f"memory, {MODE_WORDS[one.mode]}, {one.thirds:g} thirds: {one.seen}, {one.message}"
    for cell in bench.cells:
        if cell.key.mode is Mode.MPS and cell.clients_seen not in (None, cell.key.processes):
            yield f"{cell.key}: the MPS daemon listed {cell.clients_seen} clients more than before them"


def _wrong_pi(bench: Bench) -> Iterator[str]:
    """A tenant that computed something else: six standard errors off, and more than single precision."""
    for cell in bench.cells:
        values = [turn.value for repeat in cell.good for turn in repeat.turns if turn.value is not None]
        allowed = max(1e-4, 6 * 1.65 / math.sqrt(max(1, cell.points * cell.rounds)))
        if any(abs(value - math.pi) > allowed for value in values):
            yield f"{cell.key}: a process computed {max(values, key=lambda one: abs(one - math.pi))} for pi"

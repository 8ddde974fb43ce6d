"""A run of the bench as a JSON document, ``kind: Bench``, and as tables in the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.answers.documents.lab import DocumentKind
from partage.answers.render.tables import plain_table, report_lines
from partage.lab.bench.model import BenchCell, BenchReport, Experiment
from partage.lab.bench.summary import (
    BenchFigure,
    Spread,
    figures,
    latency_ms,
    ratio,
    three_digits,
    throughput,
    time_of_each,
    total_time,
)
from partage.lab.place import TenantMode
from partage.units import format_bytes

_SMALLEST, _LARGEST = 1e-7, 1e15
_LARGEST_BYTES = 256 * 2**20


def _derived(report: BenchReport, found: dict[str, Any]) -> dict[str, Any]:
    """The summary, and what each allocation was expected to do. A failed sample is its failure alone."""
    for cell in found["cells"]:
        for repeat in cell["repeats"]:
            repeat["turns"] = [
                {"failure": row["failure"]} if "failure" in row else row for row in repeat["turns"]
            ]
    memory = [
        {**row, "expected": tried.expected} for row, tried in zip(found["memory"], report.memory, strict=True)
    ]
    return {"summary": [_figure_row(figure) for figure in figures(report)], "memory": memory}


def _figure_row(figure: BenchFigure) -> dict[str, Any]:
    spread = msgspec.structs.asdict(figure.spread)
    repeats = spread.pop("count")
    rounded = {name: round(value, 4) for name, value in spread.items()}
    return {"name": figure.name, "unit": figure.unit, **rounded, "repeats": repeats}


def _check(report: BenchReport) -> None:
    """Every number can be computed with."""
    for cell in report.cells:
        _check_cell(cell)


def _check_cell(cell: BenchCell) -> None:
    if (
        cell.processes < 1
        or not cell.repeats
        or any(len(repeat.samples) != cell.processes for repeat in cell.repeats)
    ):
        raise ValueError(f"{cell} has no repeats, or one without {cell.processes} turns")
    if cell.experiment is not Experiment.INFERENCE:
        _check_numbers(f"work of {cell}", cell.points, cell.rounds)
    for sample in cell.samples:
        if sample.failure is None:
            _check_numbers(f"duration of {cell}", sample.seconds)
            if cell.experiment is Experiment.INFERENCE:
                _check_numbers(f"requests of {cell}", sample.requests or 0, len(sample.latencies_us))
            _check_numbers(f"latency of {cell}", *sample.latencies_us)


def _check_numbers(what: str, *values: float) -> None:
    for value in values:
        if not _SMALLEST <= value <= _LARGEST:
            raise ValueError(f"{what}: {value} is out of range")


BENCH = DocumentKind(
    "Bench",
    "recorded run of partage bench",
    "partage bench --save FILE writes one",
    _LARGEST_BYTES,
    BenchReport,
    _derived,
    _check,
)


_UNITS = {"times": ("x", 2), "percent": (" %", 2), "s": (" s", 3), "ms": (" ms", 3)}
"""How a unit is written, and how many decimals its figures have."""


def bench_lines(bench: BenchReport) -> Iterator[RenderableType]:
    """The machine, the tables, and the warnings."""
    return report_lines(_head(bench), list(_tables(bench)), (*bench.remarks, *_warnings(bench)))


def _tables(bench: BenchReport) -> Iterator[Table]:
    for experiment in Experiment:
        cells = [cell for cell in bench.cells if cell.experiment is experiment]
        if cells:
            yield (_latency_table if experiment is Experiment.INFERENCE else _pi_table)(bench, cells)
    if bench.memory:
        yield _memory_table(bench)
    if found := figures(bench):
        yield _figures_table(found)


def _head(bench: BenchReport) -> Iterator[str]:
    machine = bench.machine
    if machine.gpu:
        memory = format_bytes(machine.memory_bytes)
        driver = f"driver {machine.driver}, CUDA {machine.cuda}"
        yield f"{machine.gpu}, {memory}, {driver}, {machine.compute_mode} mode"
    yield f"{machine.processor or machine.system}, {machine.processors} processors"
    versions = ", ".join(f"{name} {version}" for name, version in bench.versions.items() if version)
    yield f"{bench.at}, {versions}"
    yield " ".join(bench.command)


def _pi_table(bench: BenchReport, cells: Sequence[BenchCell]) -> Table:
    title = f"{cells[0].experiment.words.capitalize()} ({cells[0].points} points a round)"
    table = plain_table(
        title, "Processes", "How", "All done, s", "Each, s", "Of alone", "Together", "Repeats",
        right=("Processes", "All done, s", "Each, s", "Of alone", "Together", "Repeats"),
    )  # fmt: skip
    for cell in cells:
        parallel = cell.processes > 1 and cell.mode is not TenantMode.SEQUENTIAL
        figures = (
            _range(total_time(cell)),
            three_digits(time_of_each(cell).median),
            _of_alone(bench, cell),
            f"{min(repeat.overlap for repeat in cell.good):.0%}" if parallel else "",
        ) if cell.good else ()  # fmt: skip
        _add_cell(table, cell, figures)
    return table


def _latency_table(bench: BenchReport, cells: Sequence[BenchCell]) -> Table:
    table = plain_table(
        "Small-model inference",
        "Processes", "How", "p50, ms", "p99, ms", "Requests/s", "Of alone", "Repeats",
        right=("Processes", "p50, ms", "p99, ms", "Requests/s", "Of alone", "Repeats"),
    )  # fmt: skip
    for cell in cells:
        figures = (
            _range(latency_ms(cell, 50)),
            _range(latency_ms(cell, 99)),
            f"{throughput(cell).median:.0f}",
            _of_alone(bench, cell),
        ) if cell.good else ()  # fmt: skip
        _add_cell(table, cell, figures)
    return table


def _add_cell(table: Table, cell: BenchCell, figures: Sequence[str]) -> None:
    """A row of figures, or of the first failure if there are none."""
    bad = len(cell.repeats) - len(cell.good)
    repeats = f"{len(cell.good)}" + (f", {bad} failed" if bad else "")
    shown = figures or (cell.failures[0].what, "", "", "")
    table.add_row(str(cell.processes), cell.mode.words, *shown, repeats, style=None if figures else "red")


def _of_alone(bench: BenchReport, cell: BenchCell) -> str:
    """Throughput of all processes, divided by that of one process alone."""
    alone = bench.cell(cell.experiment, TenantMode.ALONE, 1)
    return "" if alone is None else f"{ratio(throughput(cell), throughput(alone)).median:.2f}"


def _range(spread: Spread) -> str:
    return f"{three_digits(spread.median)} ({three_digits(spread.low)}-{three_digits(spread.high)})"


def _memory_table(bench: BenchReport) -> Table:
    table = plain_table(
        "Tensors of a third of the limit", "How", "Limit", "By", "Promise", "Tensors", "Promised", "Seen"
    )
    for memory_try in bench.memory:
        bad = memory_try.expected not in ("", memory_try.seen)
        table.add_row(
            memory_try.mode.words,
            format_bytes(memory_try.limit_bytes),
            memory_try.source,
            memory_try.promise,
            f"{memory_try.thirds:g}",
            memory_try.expected or "nothing",
            Text(memory_try.seen, style="red" if bad else "green"),
        )
    return table


def _figures_table(found: Sequence[BenchFigure]) -> Table:
    table = plain_table("Summary", "Figure", "Median", "From-to", "Repeats", right=("Median", "Repeats"))
    for figure in found:
        unit, places = _UNITS[figure.unit]
        spread = figure.spread
        table.add_row(
            figure.name,
            f"{spread.median:.{places}f}{unit}",
            f"{spread.low:.{places}f} to {spread.high:.{places}f}",
            str(spread.count),
        )
    return table


def _warnings(bench: BenchReport) -> Iterator[str]:
    """Warnings from the samples."""
    failures = Counter(
        f"{cell}: {failure.what}, {failure.message}" for cell in bench.cells for failure in cell.failures
    )
    for text, count in failures.items():
        yield text + (f" ({count} times)" if count > 1 else "")
    yield from _wrong_pi(bench)
    for memory_try in bench.memory:
        if memory_try.seen not in ("fits", "oom"):
            what = f"{memory_try.mode.words}, {memory_try.thirds:g} thirds"
            yield f"memory, {what}: {memory_try.seen}, {memory_try.message}"
    for cell in bench.cells:
        if cell.mode is TenantMode.MPS and cell.clients_seen not in (None, cell.processes):
            yield f"{cell}: the MPS daemon listed {cell.clients_seen} clients more than before them"


def _wrong_pi(bench: BenchReport) -> Iterator[str]:
    """Cells with a result that is wrong by six standard errors, and by more than the precision explains."""
    for cell in bench.cells:
        values = [sample.value for sample in cell.samples if sample.value is not None]
        allowed = max(1e-4, 6 * 1.65 / math.sqrt(max(1, cell.points * cell.rounds)))
        worst = max(values, key=lambda value: abs(value - math.pi), default=math.pi)
        if abs(worst - math.pi) > allowed:
            yield f"{cell}: a process computed {worst} for pi"

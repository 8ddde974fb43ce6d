"""A run as a JSON document, ``kind: Bench``."""

from __future__ import annotations

from typing import Any

import msgspec

from partage.answers.documents.lab import DocumentKind
from partage.lab.bench.model import BenchCell, BenchReport, Experiment
from partage.lab.bench.summary import BenchFigure, figures

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

"""Runs that nobody measured: figures chosen so that every answer can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partage.faces.bench.model import (
    Bench,
    Cell,
    Experiment,
    Failure,
    Key,
    Machine,
    MemoryTry,
    Mode,
    Repeat,
    Settings,
    Turn,
)
from partage.units import GIB

SMALL, SATURATING, INFERENCE = Experiment


def repeat(*seconds: float, number: int = 1) -> Repeat:
    """All start at once and take so long."""
    return Repeat(number, tuple(Turn(0.0, one, value=3.14, start_s=1.5) for one in seconds))


def failed(what: str, message: str, processes: int = 1) -> Repeat:
    """One of them fails, the others do not."""
    others = (Turn(0.0, 1.0),) * (processes - 1)
    return Repeat(1, (Turn(failure=Failure(what, message)), *others))


def pi(experiment: Experiment, mode: Mode, processes: int, times: Sequence[float]) -> Cell:
    """One repeat for each time, in which every process takes that long."""
    repeats = tuple(repeat(*[seconds] * processes) for seconds in times)
    if mode is Mode.SEQUENTIAL:
        repeats = tuple(in_turn(processes, seconds / processes) for seconds in times)
    return Cell(Key(experiment, mode, processes), repeats, points=1000, rounds=10)


def in_turn(processes: int, each: float) -> Repeat:
    """One after the other, a tenth of a second between them."""
    begins = [place * (each + 0.1) for place in range(processes)]
    return Repeat(1, tuple(Turn(begin, begin + each) for begin in begins))


def inference(mode: Mode, processes: int, p50_us: float, p99_us: float) -> Cell:
    """Two repeats of a second, of 96 fast requests and four slow ones each."""
    latencies = (p50_us,) * 96 + (p99_us,) * 4
    turn = Turn(0.0, 1.0, requests=100, latencies_us=latencies, start_s=1.5)
    return Cell(Key(INFERENCE, mode, processes), (Repeat(1, (turn,) * processes),) * 2)


def bench(*cells: Cell, memory: Sequence[MemoryTry] = (), machine: Machine | None = None) -> Bench:
    """A run with these cells on an invented card."""
    return Bench(
        at="2026-01-02T03:04:05+00:00",
        command=("partage", "bench"),
        versions={"partage": "0.1.0", "torch": "2.9.0"},
        machine=machine or Machine("Linux", "a processor", 16, "NVIDIA Invented 24GB", "GPU-0", 24 * GIB,
                                   "default", (), "595.1", "13.2"),
        settings=Settings(),
        cells=cells,
        memory=tuple(memory),
    )  # fmt: skip


def full() -> Bench:
    """Something in every panel and every table."""
    cells = [pi(experiment, Mode.ALONE, 1, (1.0, 1.02, 0.99)) for experiment in (SMALL, SATURATING)]
    cells += [pi(experiment, Mode.MPS, 1, (1.01, 1.02, 1.0)) for experiment in (SMALL, SATURATING)]
    cells += [inference(Mode.ALONE, 1, 90, 120), inference(Mode.MPS, 1, 95, 130)]
    for k in (2, 4, 8):
        cells += [pi(experiment, Mode.SEQUENTIAL, k, (k, k * 1.01)) for experiment in (SMALL, SATURATING)]
        cells += [
            pi(SMALL, Mode.TIME_SLICING, k, (k * 0.9, k * 0.95, k * 0.88)),
            pi(SMALL, Mode.MPS, k, (k * 0.35, k * 0.33, k * 0.36)),
            pi(SATURATING, Mode.TIME_SLICING, k, (k * 1.0, k * 1.01, k * 1.02)),
            pi(SATURATING, Mode.MPS, k, (k * 1.02, k * 1.01, k * 1.03)),
            inference(Mode.TIME_SLICING, k, 90 * k, 400 * k),
            inference(Mode.MPS, k, 90 + 10 * k, 130 + 60 * k),
        ]
    cells += [pi(SMALL, Mode.MIG, 2, (1.4, 1.41)), pi(SATURATING, Mode.MIG, 2, (3.1, 3.12))]
    cells += [inference(Mode.MIG, 2, 100, 125)]
    for experiment in (SMALL, SATURATING):
        cells += [pi(experiment, Mode.WITHOUT_GUARD, 1, (1.0, 1.01))]
        cells += [pi(experiment, Mode.WITH_GUARD, 1, (1.002, 1.008))]
    cells.sort(key=lambda cell: (list(Experiment).index(cell.key.experiment), cell.key.processes))
    unlimited, limited = "time-slicing has no memory limit", "the daemon's limit, read back"
    memory = [
        MemoryTry(Mode.TIME_SLICING, 12 * GIB, unlimited, "none", 2.5, "fits"),
        MemoryTry(Mode.TIME_SLICING, 12 * GIB, unlimited, "none", 3.0, "fits"),
        MemoryTry(Mode.MPS, 12 * GIB, limited, "guarded", 2.5, "fits"),
        MemoryTry(Mode.MPS, 12 * GIB, limited, "guarded", 3.0, "oom", "CUDA out of memory"),
    ]
    return bench(*cells, memory=memory)


def replace_repeats(cell: Cell, repeats: Sequence[Repeat]) -> Cell:
    """The same cell with other samples."""
    return replace(cell, repeats=tuple(repeats))

"""Runs that nobody measured: figures chosen so that every answer can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from partage.lab.bench.model import (
    BenchCell,
    BenchMachine,
    BenchReport,
    BenchSettings,
    Experiment,
    MemoryTry,
    Repeat,
    TenantSample,
)
from partage.lab.place import TenantMode
from partage.lab.tenant import TenantFailure
from partage.model.ids import GpuUuid
from partage.units import GIB

SMALL, SATURATING, INFERENCE = Experiment


def repeat(*seconds: float, number: int = 1) -> Repeat:
    """All start at once and take so long."""
    return Repeat(number, tuple(TenantSample(0.0, one, value=3.14, start_s=1.5) for one in seconds))


def failed(what: str, message: str, processes: int = 1) -> Repeat:
    """One of them fails, the others do not."""
    others = (TenantSample(0.0, 1.0),) * (processes - 1)
    return Repeat(1, (TenantSample(failure=TenantFailure(what, message)), *others))


def pi(experiment: Experiment, mode: TenantMode, processes: int, times: Sequence[float]) -> BenchCell:
    """One repeat for each time, in which every process takes that long."""
    repeats = tuple(repeat(*[seconds] * processes) for seconds in times)
    if mode is TenantMode.SEQUENTIAL:
        repeats = tuple(in_turn(processes, seconds / processes) for seconds in times)
    return BenchCell(experiment, mode, processes, repeats, points=1000, rounds=10)


def in_turn(processes: int, each: float) -> Repeat:
    """One after the other, a tenth of a second between them."""
    begins = [place * (each + 0.1) for place in range(processes)]
    return Repeat(1, tuple(TenantSample(begin, begin + each) for begin in begins))


def inference(mode: TenantMode, processes: int, p50_us: float, p99_us: float) -> BenchCell:
    """Two repeats of a second, of 96 fast requests and four slow ones each."""
    latencies = (p50_us,) * 96 + (p99_us,) * 4
    turn = TenantSample(0.0, 1.0, requests=100, latencies_us=latencies, start_s=1.5)
    return BenchCell(INFERENCE, mode, processes, (Repeat(1, (turn,) * processes),) * 2)


def bench(
    *cells: BenchCell, memory: Sequence[MemoryTry] = (), machine: BenchMachine | None = None
) -> BenchReport:
    """A run with these cells on an invented card."""
    return BenchReport(
        at="2026-01-02T03:04:05+00:00",
        command=("partage", "bench"),
        versions={"partage": "0.1.0", "torch": "2.9.0"},
        machine=machine or BenchMachine("Linux", "a processor", 16, "NVIDIA Invented 24GB", GpuUuid("GPU-0"),
                                   24 * GIB, "default", (), "595.1", "13.2"),
        settings=BenchSettings(),
        cells=cells,
        memory=tuple(memory),
        remarks=(),
    )  # fmt: skip


def full() -> BenchReport:
    """Something in every panel and every table."""
    cells = [pi(experiment, TenantMode.ALONE, 1, (1.0, 1.02, 0.99)) for experiment in (SMALL, SATURATING)]
    cells += [pi(experiment, TenantMode.MPS, 1, (1.01, 1.02, 1.0)) for experiment in (SMALL, SATURATING)]
    cells += [inference(TenantMode.ALONE, 1, 90, 120), inference(TenantMode.MPS, 1, 95, 130)]
    for k in (2, 4, 8):
        cells += [
            pi(experiment, TenantMode.SEQUENTIAL, k, (k, k * 1.01)) for experiment in (SMALL, SATURATING)
        ]
        cells += [
            pi(SMALL, TenantMode.TIME_SLICING, k, (k * 0.9, k * 0.95, k * 0.88)),
            pi(SMALL, TenantMode.MPS, k, (k * 0.35, k * 0.33, k * 0.36)),
            pi(SATURATING, TenantMode.TIME_SLICING, k, (k * 1.0, k * 1.01, k * 1.02)),
            pi(SATURATING, TenantMode.MPS, k, (k * 1.02, k * 1.01, k * 1.03)),
            inference(TenantMode.TIME_SLICING, k, 90 * k, 400 * k),
            inference(TenantMode.MPS, k, 90 + 10 * k, 130 + 60 * k),
        ]
    cells += [pi(SMALL, TenantMode.MIG, 2, (1.4, 1.41)), pi(SATURATING, TenantMode.MIG, 2, (3.1, 3.12))]
    cells += [inference(TenantMode.MIG, 2, 100, 125)]
    for experiment in (SMALL, SATURATING):
        cells += [pi(experiment, TenantMode.WITHOUT_GUARD, 1, (1.0, 1.01))]
        cells += [pi(experiment, TenantMode.WITH_GUARD, 1, (1.002, 1.008))]
    cells.sort(key=lambda cell: (list(Experiment).index(cell.experiment), cell.processes))
    unlimited, limited = "time-slicing has no memory limit", "the daemon's limit, read back"
    memory = [
        MemoryTry(TenantMode.TIME_SLICING, 12 * GIB, unlimited, "none", 2.5, "fits"),
        MemoryTry(TenantMode.TIME_SLICING, 12 * GIB, unlimited, "none", 3.0, "fits"),
        MemoryTry(TenantMode.MPS, 12 * GIB, limited, "guarded", 2.5, "fits"),
        MemoryTry(TenantMode.MPS, 12 * GIB, limited, "guarded", 3.0, "oom", "CUDA out of memory"),
    ]
    return bench(*cells, memory=memory)


def replace_repeats(cell: BenchCell, repeats: Sequence[Repeat]) -> BenchCell:
    """The same cell with other samples."""
    return replace(cell, repeats=tuple(repeats))

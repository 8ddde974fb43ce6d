"""What a run of the bench is asked for, in which order it is measured, and what was measured.

Every pass goes through all sessions; every second pass goes backwards, so that a GPU that slows down as it
becomes warm does so for every mode. Within a session the cells take turns, repeat by repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from partage.answers.documents.lab import LabReport
from partage.lab.place import TenantMode, TenantPlace
from partage.lab.tenant import TenantFailure
from partage.model.ids import GpuUuid, MigUuid
from partage.text import count_of
from partage.values import Frozen


class Experiment(StrEnum):
    """small, saturating: the pi program with kernels of that size. inference: requests to a small model."""

    SMALL = "pi-small"
    SATURATING = "pi-saturating"
    INFERENCE = "inference"

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self]


_WORDS = {
    Experiment.SMALL: "pi, small kernels",
    Experiment.SATURATING: "pi, saturating kernels",
    Experiment.INFERENCE: "small-model inference",
}


class TenantSample(Frozen, omit_defaults=True):
    """One tenant's part in one repeat. Times are seconds after the common start.

    value: its estimate of pi. latencies_us: of the first requests; requests: of all of them.
    start_s: from the start of the process until it could work, imports and CUDA context included.
    """

    # Made by a factory, a value is never left out of a document, 0.0 included.
    started_s: float = msgspec.field(default_factory=float)
    ended_s: float = msgspec.field(default_factory=float)
    value: float | None = None
    requests: int | None = None
    latencies_us: tuple[float, ...] = ()
    start_s: float | None = None
    failure: TenantFailure | None = None

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s


class Repeat(Frozen):
    """All tenants once. number: of the pass over all cells that it belongs to, from 1."""

    number: int = msgspec.field(name="pass")
    samples: tuple[TenantSample, ...] = msgspec.field(name="turns")

    @property
    def good(self) -> bool:
        """No tenant failed: the repeat counts."""
        return not any(sample.failure for sample in self.samples)

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return max(sample.ended_s for sample in self.samples) - min(
            sample.started_s for sample in self.samples
        )

    @property
    def overlap(self) -> float:
        """The part of the makespan in which all tenants computed, 0 to 1."""
        together = min(sample.ended_s for sample in self.samples) - max(
            sample.started_s for sample in self.samples
        )
        return max(0.0, together) / self.makespan_s if self.makespan_s else 0.0


class CellKey(Frozen):
    """Which cell: one experiment, in one mode, with a number of processes."""

    experiment: Experiment
    mode: TenantMode
    processes: int

    def __str__(self) -> str:
        how = "" if self.mode is TenantMode.ALONE else f", {self.mode.words}"
        return f"{self.experiment.words}, {count_of(self.processes, 'process', 'processes')}{how}"


class BenchCell(CellKey, frozen=True):
    """What was measured for one key.

    points: of one round; rounds: of each process; both 0 for inference.
    clients_seen: how many more clients the MPS daemon listed while the processes were there; None: not asked.
    """

    repeats: tuple[Repeat, ...]
    points: int = 0
    rounds: int = 0
    clients_seen: int | None = None

    @property
    def key(self) -> CellKey:
        return CellKey(self.experiment, self.mode, self.processes)

    @property
    def good(self) -> tuple[Repeat, ...]:
        return tuple(repeat for repeat in self.repeats if repeat.good)

    @property
    def samples(self) -> Iterator[TenantSample]:
        """Of all repeats."""
        return (sample for repeat in self.repeats for sample in repeat.samples)

    @property
    def failures(self) -> list[TenantFailure]:
        """Of all repeats."""
        return [sample.failure for sample in self.samples if sample.failure]

    @property
    def times_s(self) -> tuple[float, ...]:
        """Of each good repeat: until all were done. One after the other, the pauses do not count."""
        if self.mode is TenantMode.SEQUENTIAL:
            return tuple(sum(sample.seconds for sample in repeat.samples) for repeat in self.good)
        return tuple(repeat.makespan_s for repeat in self.good)


class MemoryTry(Frozen):
    """A tenant that allocates tensors of a third of a limit, one after the other.

    limit_bytes: the limit; source: where it comes from, a sentence.
    promise: ``hard``, ``guarded``, ``advisory`` or ``none``: how far the limit is enforced.
    thirds: 3, or fewer that fit if the limit holds, mostly 2.5. seen: ``fits``, or what a TenantFailure says.
    """

    mode: TenantMode
    limit_bytes: int
    source: str
    promise: str
    thirds: float
    seen: str
    message: str = ""

    @property
    def expected(self) -> str:
        """``fits`` or ``oom``; empty where nothing is promised."""
        if self.promise == "none":
            return ""
        return "fits" if self.thirds < 3 else "oom"


class BenchMachine(Frozen):
    """What was measured on. The fields of a GPU are empty where the CPU was measured.

    others: processes that had the GPU open before the first tenant.
    """

    system: str
    processor: str
    processors: int
    gpu: str = ""
    uuid: GpuUuid = GpuUuid("")
    memory_bytes: int = 0
    compute_mode: str = ""
    mig_devices: tuple[MigUuid, ...] = ()
    driver: str = ""
    cuda: str = ""
    others: int = 0


class BenchSettings(Frozen):
    """What was asked for.

    seconds: how long one process alone is to compute in each repeat. deadline_s: what a tenant may take
    beyond four times the work of all. keep: how many latencies of each sample are kept.
    """

    device: str = "cuda"
    engine: str = "torch"
    processes: tuple[int, ...] = (1, 2, 4, 8)
    experiments: tuple[str, ...] = ("pi", "memory", "inference")
    repeats: int = 6
    passes: int = 2
    seconds: float = 2.0
    small_points: int = 2**16
    saturating_points: int = 2**25
    memory_bytes: int | None = None
    guard: bool = False
    deadline_s: float = 120.0
    keep: int = 500

    def points(self, experiment: Experiment) -> int:
        """Of one round of the pi program."""
        return self.small_points if experiment is Experiment.SMALL else self.saturating_points


class BenchReport(LabReport, kw_only=True):
    """A whole run, with every sample."""

    machine: BenchMachine
    settings: BenchSettings
    memory: tuple[MemoryTry, ...]
    cells: tuple[BenchCell, ...]

    def cell(self, experiment: Experiment, mode: TenantMode, processes: int) -> BenchCell | None:
        """The cell, if it was measured at least once without failure."""
        wanted = CellKey(experiment, mode, processes)
        return next((cell for cell in self.cells if cell.key == wanted and cell.good), None)


PLAIN = (TenantMode.ALONE, TenantMode.SEQUENTIAL, TenantMode.TIME_SLICING, TenantMode.PARALLEL)
"""Modes that the same processes can be measured in: their environment is the same."""

_PI = (Experiment.SMALL, Experiment.SATURATING)


class BenchSession(Frozen):
    """Processes that live together for some cells. number: of the pass; repeats: of each cell in it."""

    number: int
    processes: int
    mode: TenantMode
    keys: tuple[CellKey, ...]
    repeats: int


def possible_modes(place: TenantPlace, processes: int) -> tuple[TenantMode, ...]:
    """In which modes that many processes can run beside each other there, apart from the guard's."""
    one = processes == 1
    if not place.on_gpu:
        return (TenantMode.ALONE,) if one else (TenantMode.SEQUENTIAL, TenantMode.PARALLEL)
    plain = (TenantMode.ALONE,) if one else (TenantMode.SEQUENTIAL, TenantMode.TIME_SLICING)
    mps = (TenantMode.MPS,) if place.pipe is not None else ()
    mig = (TenantMode.MIG,) if 1 < processes <= len(place.mig) else ()
    return plain + mps + mig


def experiments_of(settings: BenchSettings) -> tuple[Experiment, ...]:
    """The timed experiments that were asked for."""
    pi = _PI if "pi" in settings.experiments else ()
    return pi + ((Experiment.INFERENCE,) if "inference" in settings.experiments else ())


def sessions(settings: BenchSettings, place: TenantPlace) -> tuple[BenchSession, ...]:
    """All of them, in order."""
    found: list[BenchSession] = []
    for number in range(1, settings.passes + 1):
        repeats = settings.repeats // settings.passes + (number <= settings.repeats % settings.passes)
        of_pass = list(_of_pass(settings, place, number, repeats)) if repeats else []
        found += of_pass if number % 2 else reversed(of_pass)
    return tuple(found)


def guard_sessions(settings: BenchSettings) -> tuple[BenchSession, ...]:
    """One process without and one with the guard, in turns: each repeat is a new process."""
    if not settings.guard or "pi" not in settings.experiments:
        return ()
    both = (TenantMode.WITHOUT_GUARD, TenantMode.WITH_GUARD)
    return tuple(
        BenchSession(number, 1, mode, tuple(CellKey(experiment, mode, 1) for experiment in _PI), 1)
        for number in range(1, settings.repeats + 1)
        for mode in (both if number % 2 else both[::-1])
    )


def _of_pass(
    settings: BenchSettings, place: TenantPlace, number: int, repeats: int
) -> Iterator[BenchSession]:
    for processes in settings.processes:
        modes = possible_modes(place, processes)
        plain = tuple(mode for mode in modes if mode in PLAIN)
        for together in (plain, *((mode,) for mode in modes if mode not in PLAIN)):
            keys = tuple(
                CellKey(experiment, mode, processes)
                for experiment in experiments_of(settings)
                for mode in together
                # Requests in turn are those of one process alone.
                if not (experiment is Experiment.INFERENCE and mode is TenantMode.SEQUENTIAL)
            )
            if keys:
                yield BenchSession(number, processes, together[-1], keys, repeats)

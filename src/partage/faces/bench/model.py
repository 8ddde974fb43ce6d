"""What a run of the bench is asked for, and what it saw."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """How the processes of a cell run.

    alone: one process. one-after-the-other: all are there, one computes at a time. parallel: at the same
    time on the CPU, which is no GPU's figure. without-guard, with-guard: one process, begun anew each time.
    """

    ALONE = "alone"
    SEQUENTIAL = "one-after-the-other"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"
    PARALLEL = "parallel"
    WITHOUT_GUARD = "without-guard"
    WITH_GUARD = "with-guard"


MODE_WORDS = {
    Mode.ALONE: "alone",
    Mode.SEQUENTIAL: "one after the other",
    Mode.TIME_SLICING: "time-slicing",
    Mode.MPS: "MPS",
    Mode.MIG: "MIG, a device each",
    Mode.PARALLEL: "parallel, on the CPU",
    Mode.WITHOUT_GUARD: "without the guard",
    Mode.WITH_GUARD: "with the guard",
}


class Experiment(StrEnum):
    """small, saturating: the pi program with kernels of that size. inference: requests to a small model."""

    SMALL = "pi-small"
    SATURATING = "pi-saturating"
    INFERENCE = "inference"


EXPERIMENT_WORDS = {
    Experiment.SMALL: "pi, small kernels",
    Experiment.SATURATING: "pi, saturating kernels",
    Experiment.INFERENCE: "small-model inference",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """How a tenant failed.

    what: ``oom``; ``error``, which it told itself; ``died``; ``hung``, it was silent beyond its deadline.
    """

    what: str
    message: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One tenant's part in one repeat. Seconds after the common start.

    value: its estimate of pi. latencies_us: of the first requests; requests: of all of them.
    start_s: from the start of the process until it could work, imports and CUDA context included.
    """

    started_s: float = 0.0
    ended_s: float = 0.0
    value: float | None = None
    requests: int | None = None
    latencies_us: tuple[float, ...] = ()
    start_s: float | None = None
    failure: Failure | None = None

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class Repeat:
    """All tenants once. number: of the pass over all cells that it belongs to, from 1."""

    number: int
    turns: tuple[Turn, ...]

    @property
    def good(self) -> bool:
        """Nobody failed: it counts."""
        return not any(turn.failure for turn in self.turns)

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return max(turn.ended_s for turn in self.turns) - min(turn.started_s for turn in self.turns)

    @property
    def overlap(self) -> float:
        """The part of the makespan in which all tenants computed, 0 to 1: that parallel was parallel."""
        together = min(turn.ended_s for turn in self.turns) - max(turn.started_s for turn in self.turns)
        return max(0.0, together) / self.makespan_s if self.makespan_s else 0.0


@dataclass(frozen=True, slots=True)
class Key:
    """Which cell: the same experiment, mode and number of processes are the same cell."""

    experiment: Experiment
    mode: Mode
    processes: int

    def __str__(self) -> str:
        count = "1 process" if self.processes == 1 else f"{self.processes} processes"
        how = "" if self.mode is Mode.ALONE else f", {MODE_WORDS[self.mode]}"
        return f"{EXPERIMENT_WORDS[self.experiment]}, {count}{how}"


@dataclass(frozen=True, slots=True)
class Cell:
    """points: of one round; rounds: of each process; both 0 for inference.

    clients_seen: how many clients more the MPS daemon listed while the processes were there; None: not asked.
    """

    key: Key
    repeats: tuple[Repeat, ...]
    points: int = 0
    rounds: int = 0
    clients_seen: int | None = None

    @property
    def good(self) -> tuple[Repeat, ...]:
        return tuple(repeat for repeat in self.repeats if repeat.good)

    @property
    def times_s(self) -> tuple[float, ...]:
        """Of each good repeat: until all were done. Between turns nobody's time counts."""
        if self.key.mode is Mode.SEQUENTIAL:
            return tuple(sum(turn.seconds for turn in repeat.turns) for repeat in self.good)
        return tuple(repeat.makespan_s for repeat in self.good)


@dataclass(frozen=True, slots=True)
class MemoryTry:
    """A tenant that allocates tensors of a third of a limit, one after the other.

    limit_bytes: whose third; source: a sentence, where the limit comes from.
    promise: ``hard``, ``guarded``, ``advisory`` or ``none``: what holds the tenant to it.
    thirds: 2.5 or 3. seen: ``fits``, or what a Failure says.
    """

    mode: Mode
    limit_bytes: int
    source: str
    promise: str
    thirds: float
    seen: str
    message: str = ""

    @property
    def expected(self) -> str:
        """``fits`` or ``oom``; without a limit nothing is promised: empty."""
        if self.promise == "none":
            return ""
        return "fits" if self.thirds < 3 else "oom"


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured on. driver, cuda, gpu, uuid: empty for the CPU.

    device_name: as the framework calls it. others: processes that had the GPU open before the first of ours.
    """

    system: str
    processor: str
    processors: int
    gpu: str = ""
    uuid: str = ""
    memory_bytes: int = 0
    compute_mode: str = ""
    mig_devices: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""
    others: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for. seconds: how long one process alone is to compute in each repeat.

    deadline_s: what a tenant may take beyond four times the work of all; keep: latencies kept of each turn.
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


@dataclass(frozen=True, slots=True)
class Bench:
    """A whole run, with every sample. at: ISO 8601, UTC. remarks: what to know before relying on it."""

    at: str
    command: tuple[str, ...]
    versions: dict[str, str]
    machine: Machine
    settings: Settings
    cells: tuple[Cell, ...]
    memory: tuple[MemoryTry, ...]
    remarks: tuple[str, ...] = ()

    def cell(self, experiment: Experiment, mode: Mode, processes: int) -> Cell | None:
        """The cell, if it was measured at least once without failure."""
        wanted = Key(experiment, mode, processes)
        return next((cell for cell in self.cells if cell.key == wanted and cell.good), None)

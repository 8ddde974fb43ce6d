"""The values of a proof: which share, what it promises, what became of the promise, and how anybody knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from partage.model.share import Guarantee


class Verdict(StrEnum):
    """What became of a promise.

    kept:    what was seen is at least what was promised; where nothing is promised, that.
    weaker:  it holds a tenant who merely works, and not one who means to get around it, though it should.
    broken:  it does not even hold a tenant who merely works.
    not-tried: nobody knows.
    """

    KEPT = "kept"
    WEAKER = "weaker-than-promised"
    BROKEN = "broken"
    NOT_TRIED = "not-tried"


class Evidence(StrEnum):
    """How a row is known.

    hardware:   a GPU was there, and did it. simulated: the simulated control program, which refuses what
    NVIDIA's is known to refuse. documented: NVIDIA's words, or users'.
    """

    HARDWARE = "hardware"
    SIMULATED = "simulated"
    DOCUMENTED = "documented"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attack found. seen: a sentence; under not-tried, the reason."""

    verdict: Verdict
    seen: str


def kept(seen: str) -> Outcome:
    """As promised."""
    return Outcome(Verdict.KEPT, seen)


def weaker(seen: str) -> Outcome:
    """A tenant got around it."""
    return Outcome(Verdict.WEAKER, seen)


def broken(seen: str) -> Outcome:
    """It does not hold."""
    return Outcome(Verdict.BROKEN, seen)


def not_tried(reason: str) -> Outcome:
    """It could not be tried, or the attempt did not come off."""
    return Outcome(Verdict.NOT_TRIED, reason)


@dataclass(frozen=True, slots=True)
class Which:
    """The share that was attacked. device: UUID of the GPU or MIG device; memory_bytes: of one share."""

    resource: str
    gpu: int
    device: str
    replicas: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One attack on one share, or on none where nothing like it is offered.

    attack: its name. guarantee: what the share states. promised, tried: sentences.
    """

    attack: str
    strategy: str
    guarantee: Guarantee
    promised: str
    tried: str
    outcome: Outcome
    evidence: Evidence
    share: Which | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run.

    at: RFC 3339. driver: version, and cuda; of a simulated machine its simulated ones. machine: the name of a
    simulated machine, empty on a real node. gpus: ``GPU 0: NVIDIA H100 80GB HBM3, default mode``.
    """

    at: str
    command: tuple[str, ...]
    versions: dict[str, str]
    driver: str
    cuda: str
    machine: str = ""
    gpus: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    remarks: tuple[str, ...] = field(default_factory=tuple)

    def count(self, verdict: Verdict) -> int:
        """How many rows came out so."""
        return sum(row.outcome.verdict is verdict for row in self.rows)

    @property
    def exit_code(self) -> int:
        """1 where a promise is broken."""
        return 1 if self.count(Verdict.BROKEN) else 0

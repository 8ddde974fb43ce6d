"""The values of a proof: which share, what it promises, what was seen, and how that is known."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from partage.answers.documents.lab import LabReport
from partage.model.ids import DeviceUuid
from partage.model.share import Guarantee
from partage.values import Frozen


class ProofVerdict(StrEnum):
    """The outcome for a promise.

    kept:    what was seen is at least what was promised, also where nothing is promised.
    weaker:  it holds against a tenant that only works, and not against one that tries to avoid it.
    broken:  it does not even hold against a tenant that only works.
    not-tried: not known.
    """

    KEPT = "kept"
    WEAKER = "weaker-than-promised"
    BROKEN = "broken"
    NOT_TRIED = "not-tried"


class EvidenceKind(StrEnum):
    """How a row is known.

    hardware:   seen on a GPU. simulated: seen on the simulated control program, which refuses what NVIDIA's
    is known to refuse. documented: NVIDIA's documentation, or what users have shown.
    """

    HARDWARE = "hardware"
    SIMULATED = "simulated"
    DOCUMENTED = "documented"


class AttackOutcome(Frozen):
    """What an attack found. seen: a sentence; under not-tried, the reason."""

    verdict: ProofVerdict
    seen: str


def kept(seen: str) -> AttackOutcome:
    """As promised."""
    return AttackOutcome(ProofVerdict.KEPT, seen)


def weaker(seen: str) -> AttackOutcome:
    """A tenant avoided it."""
    return AttackOutcome(ProofVerdict.WEAKER, seen)


def broken(seen: str) -> AttackOutcome:
    """It does not hold."""
    return AttackOutcome(ProofVerdict.BROKEN, seen)


def not_tried(reason: str) -> AttackOutcome:
    """It could not be tried, or the attempt failed."""
    return AttackOutcome(ProofVerdict.NOT_TRIED, reason)


class AttackedShare(Frozen):
    """The share that was attacked. device: UUID of the GPU or MIG device; memory_bytes: of one share."""

    resource: str
    gpu: int
    device: DeviceUuid
    replicas: int
    memory_bytes: int


class AttackWords(Frozen):
    """What is said of an attack. name: as reports call it. strategy: which shares make the promise.
    guarantee: what such a share states. promised: a sentence about every such share. tried: what is done, a
    sentence.
    """

    name: str = field(name="attack")
    strategy: str
    guarantee: Guarantee
    promised: str
    tried: str


class ProofRow(AttackWords):
    """One attack on one share, or on none where no such share is offered. seen: a sentence. reason: why it
    was not tried; ``seen`` is empty then.
    """

    verdict: ProofVerdict
    seen: str
    reason: str
    evidence: EvidenceKind
    share: AttackedShare | None

    @property
    def found(self) -> str:
        """What was seen, or why nothing was."""
        return self.seen or self.reason


class DriverVersions(Frozen):
    """Of the driver; on a simulated machine its simulated ones."""

    version: str
    cuda: str


class ProofReport(LabReport, kw_only=True):
    """A whole run.

    machine: the name of a simulated machine, empty on a real node.
    gpus: ``GPU 0: NVIDIA H100 80GB HBM3, default mode``.
    """

    driver: DriverVersions
    machine: str
    gpus: tuple[str, ...]
    rows: tuple[ProofRow, ...]

    def count(self, verdict: ProofVerdict) -> int:
        """How many rows have this verdict."""
        return sum(row.verdict is verdict for row in self.rows)

    @property
    def exit_code(self) -> int:
        """1 where a promise is broken, 3 where nothing was tried."""
        if self.count(ProofVerdict.BROKEN):
            return 1
        return 3 if self.untried else 0

    @property
    def untried(self) -> tuple[str, ...]:
        """Why nothing at all was tried, each reason once; empty where something was."""
        if any(row.verdict is not ProofVerdict.NOT_TRIED for row in self.rows):
            return ()
        offered = [row.reason for row in self.rows if row.share is not None]
        return tuple(dict.fromkeys(offered or [row.reason for row in self.rows]))

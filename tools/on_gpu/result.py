"""The result file: on which machines what was looked at, and what was seen. It is whole after each step."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from partage.answers.documents.lab import DocumentKind
from partage.edges.host.replace_file import replace_file
from partage.values import Frozen

LARGEST_BYTES = 32 * 2**20
_MODE = 0o644


class Verdict(StrEnum):
    """What became of a row of the table. not-possible-here: it takes another driver, setting, GPU or
    right.
    """

    SEEN = "seen"
    CONTRADICTED = "contradicted"
    NOT_HERE = "not-possible-here"


class Finding(Frozen):
    """What one step says of one row. words: what was seen, or what it takes; a clause."""

    row: str
    verdict: Verdict
    words: str


class Outcome(StrEnum):
    """How a step ended. failed: by an error of its own, so that nothing is known of its rows.

    timed-out: at its time limit, and was killed. interrupted: it had begun when the run was killed.
    """

    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    INTERRUPTED = "interrupted"


class SeenMachine(Frozen):
    """One machine with its driver. gpu: UUID of the GPU that was looked at; root: it was looked at as
    root.
    """

    host: str
    gpu: str
    product: str
    driver: str
    cuda: str
    kernel: str
    python: str
    root: bool
    simulated: bool = False

    @property
    def kind(self) -> tuple[str, str]:
        """What decides how a driver behaves, apart from settings: model and driver."""
        return self.product, self.driver

    @property
    def identity(self) -> tuple[str, str, str, bool]:
        """What makes it this machine. The same one with another driver, or without root, is another."""
        return self.host, self.gpu, self.driver, self.root

    def __str__(self) -> str:
        return f"{self.product} ({self.gpu}), driver {self.driver}"


class StepRun(Frozen):
    """One run of one step. machine: its place in ``machines``. at: RFC 3339, UTC. words: of an error.

    data: what was measured and read, in the words of the step. left: what could not be ended.
    """

    step: str
    machine: int
    at: str
    seconds: float
    outcome: Outcome
    words: str = ""
    findings: tuple[Finding, ...] = ()
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    left: tuple[str, ...] = ()


class HardwareEvidence(Frozen):
    """Everything that was seen. began: the day, ``2026-11-24``."""

    began: str
    partage: str
    machines: tuple[SeenMachine, ...] = ()
    runs: tuple[StepRun, ...] = ()


def _check(evidence: HardwareEvidence) -> None:
    if any(not 0 <= run.machine < len(evidence.machines) for run in evidence.runs):
        raise ValueError("a run names a machine that is not listed")


EVIDENCE = DocumentKind(
    "HardwareEvidence",
    what="result of make on-gpu",
    hint="make on-gpu writes one",
    largest_bytes=LARGEST_BYTES,
    type=HardwareEvidence,
    derived=lambda _, __: {},
    check=_check,
)


def save(path: Path, evidence: HardwareEvidence) -> None:
    """Replace the file in one step: whatever happens meanwhile, the old or the new one is there."""
    text = json.dumps(EVIDENCE.to_document(evidence), indent=1, ensure_ascii=False) + "\n"
    replace_file(path, text.encode(errors="replace"), mode=_MODE)


def newest(folder: Path) -> Path | None:
    """The result file that was begun last; None where there is none."""
    return max(folder.glob("hardware-*.json"), default=None, key=lambda path: path.name)

"""The answer of ``partage doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from partage.answers.documents.document import Document, row
from partage.doctor.decide.diagnose import Diagnosis, Explained, NotLooked
from partage.doctor.decide.finding import Finding, repair_sentence
from partage.doctor.repair import Repaired
from partage.errors import Severity
from partage.values import Frozen


class FindingRow(Frozen):
    """One thing that is wrong. code: stable. evidence: what was seen, and where. fix: what to do next.

    repairs: what ``--fix`` does about it. explains: codes of findings that follow from it and are left out.
    """

    code: str
    severity: Severity
    message: str
    evidence: tuple[str, ...]
    fix: str
    repairs: tuple[str, ...]
    explains: tuple[str, ...]


class RepairRow(Frozen):
    """What ``--fix`` did, or would do. left: why it was not done; empty: it was."""

    what: str
    done: bool
    left: str


class BundleFileRow(Frozen):
    """One file in the support bundle."""

    name: str
    what: str
    bytes: int


class BundleRow(Frozen):
    """The support bundle."""

    path: str
    files: tuple[BundleFileRow, ...]


class DoctorDocument(Document, kw_only=True):
    """The answer of ``doctor``. findings: causes first. looked: how many checks could look. repairs: with
    ``--fix``. bundle: with ``--bundle``.
    """

    kind: Literal["Doctor"] = "Doctor"
    healthy: bool
    looked: int
    findings: tuple[FindingRow, ...]
    not_looked: tuple[NotLooked, ...]
    repairs: tuple[RepairRow, ...] = ()
    bundle: BundleRow | None = None


def doctor_document(found: Diagnosis, repaired: Sequence[Repaired], *, done: bool) -> DoctorDocument:
    """done: repairs were carried out, not only listed."""
    return DoctorDocument(
        healthy=not found.findings,
        looked=found.looked,
        findings=tuple(_finding(finding, found.explained) for finding in found.findings),
        not_looked=found.not_looked,
        repairs=tuple(
            RepairRow(repair_sentence(repair.repair), done and not repair.left, repair.left)
            for repair in repaired
        ),
    )


def _finding(finding: Finding, explained: Sequence[Explained]) -> FindingRow:
    return row(
        FindingRow,
        finding,
        repairs=tuple(map(repair_sentence, finding.repairs)),
        explains=tuple(
            explanation.finding.code for explanation in explained if finding.code in explanation.by
        ),
    )

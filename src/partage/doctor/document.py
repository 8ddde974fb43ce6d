"""The answer of ``partage doctor``: as a document, and for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.text import Text

from partage.answers.documents.document import Document, row
from partage.doctor.decide.diagnose import Diagnosis, Explained, NotLooked
from partage.doctor.decide.finding import Finding, Trouble, repair_sentence
from partage.doctor.repair import Repaired
from partage.text import count_of
from partage.values import Frozen


class FindingRow(Trouble):
    """One thing that is wrong. code: stable. evidence: what was seen, and where. fix: what to do next.

    repairs: what ``--fix`` does about it. explains: codes of findings that follow from it and are left out.
    """

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


_STYLES = {"error": "bold red", "warning": "yellow"}
_INDENT = "  "
_NARROWEST = 20


def print_diagnosis(console: Console, document: DoctorDocument, *, fixes: bool, dry_run: bool) -> None:
    """What was repaired, all findings, and what was not looked at. fixes: ``--fix`` was given."""
    for repair in document.repairs:
        _indented(console, _repair(repair, dry_run=dry_run), "green" if repair.done else "dim", indent=False)
    if fixes and not document.repairs:
        console.print("--fix: nothing that it may repair")
    for finding in document.findings:
        _print_finding(console, finding)
    console.print(_summary(document))
    for gap in document.not_looked:
        _indented(console, f"not looked at: {', '.join(gap.what)}: {gap.why}", "dim", indent=False)


def print_bundle(console: Console, bundle: BundleRow) -> None:
    """What the bundle contains: who sends it on should know."""
    console.print(f"{bundle.path}: {count_of(len(bundle.files), 'file')}, only you can read it")
    for file in bundle.files:
        _indented(console, f"{file.name}: {file.what} ({count_of(file.bytes, 'byte')})", "")
    _indented(
        console,
        "Secrets are taken out: tokens, passwords, keys, certificates, values of the environment, names of "
        "users. Names of nodes, namespaces and pods are in it. Look before you send it: tar xzf "
        f"{bundle.path}",
        "dim",
    )


def _print_finding(console: Console, finding: FindingRow) -> None:
    head = Text()
    head.append(f"{finding.severity}: ", style=_STYLES[finding.severity])
    head.append(finding.message)
    head.append(f" ({finding.code})", style="dim")
    console.print(head)
    for clause in finding.evidence:
        _indented(console, f"seen: {clause}", "dim")
    _indented(console, f"do: {finding.fix}", "")
    if finding.explains:
        follow = count_of(len(finding.explains), "more finding")
        verb = "follows" if len(finding.explains) == 1 else "follow"
        _indented(console, f"{follow} {verb} from this: {', '.join(finding.explains)}", "dim")
    console.print()


def _repair(repair: RepairRow, *, dry_run: bool) -> str:
    if dry_run:
        return f"would be done by --fix: {repair.what}"
    return f"done: {repair.what}" if repair.done else f"not done: {repair.what}: {repair.left}"


def _summary(document: DoctorDocument) -> str:
    errors = sum(finding.severity == "error" for finding in document.findings)
    warnings = len(document.findings) - errors
    looked = count_of(document.looked, "check")
    if document.healthy:
        return f"no problem found ({looked})"
    return f"{count_of(errors, 'error')}, {count_of(warnings, 'warning')} ({looked})"


def _indented(console: Console, text: str, style: str, *, indent: bool = True) -> None:
    """Folded between words only: commands can be copied, and paths stay whole."""
    before = _INDENT if indent else ""
    width = max(console.width - len(before), _NARROWEST)
    for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]:
        console.print(Text(before + line, style=style), soft_wrap=True)

"""The table of what was seen, in Markdown: the part of ``docs/evidence/hardware.md`` between two marks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from partage.edges.host.replace_file import replace_file
from tools.on_gpu.result import Finding, HardwareEvidence, Outcome, StepRun, Verdict
from tools.on_gpu.rows import ROWS, Row

BEGIN, END = "<!-- make on-gpu -->", "<!-- end of make on-gpu -->"
_LONGEST = 600
_WORDS = {
    Verdict.SEEN: "seen",
    Verdict.CONTRADICTED: "**contradicted**",
    Verdict.NOT_HERE: "not possible there: takes",
}


def latest_runs(evidence: HardwareEvidence) -> dict[tuple[int, str], StepRun]:
    """The last run of each step on each machine."""
    return {(run.machine, run.step): run for run in evidence.runs}


def findings_of(evidence: HardwareEvidence, row: Row) -> Iterator[tuple[int, Finding]]:
    """What was said of a row: the machine, and the words, in the order of the machines."""
    for (machine, step), run in sorted(latest_runs(evidence).items()):
        if step == row.step:
            yield from ((machine, finding) for finding in run.findings if finding.row == row.key)


def state_of(evidence: HardwareEvidence, row: Row) -> str:
    """What became of a row, for people. A machine that could not is left out where another one could."""
    said = list(findings_of(evidence, row))
    looked = [(machine, finding) for machine, finding in said if finding.verdict is not Verdict.NOT_HERE]
    parts = [_finding(machine, finding) for machine, finding in (looked or said)]
    if parts:
        return "; ".join(parts)
    for (machine, step), run in sorted(latest_runs(evidence).items()):
        if step == row.step and run.outcome is not Outcome.DONE:
            return f"not known: {run.outcome.value} on {_name(machine)}"
    return _untouched(row)


def _untouched(row: Row) -> str:
    return f"not looked at yet; needs {row.takes}" if row.takes else "not looked at yet"


def _finding(machine: int, finding: Finding) -> str:
    joint = " " if finding.verdict is Verdict.NOT_HERE else ": "
    words = finding.words if len(finding.words) <= _LONGEST else f"{finding.words[:_LONGEST]} ..."
    return f"{_WORDS[finding.verdict]}{joint}{words} ({_name(machine)})"


def _name(machine: int) -> str:
    return f"machine {machine + 1}"


def table(evidence: HardwareEvidence, result: str) -> str:
    """Machines, then a line for each row. result: the file with everything that was measured."""
    lines = [
        f"Looked at from {evidence.began} on, with Partage {evidence.partage}. "
        f"All figures: [{result}]({result}).",
        "",
        *(f"- {_name(number)}: {_cell(str(machine))}" for number, machine in enumerate(evidence.machines)),
        "",
        "| what | how | what was seen |",
        "|---|---|---|",
        *(f"| {_cell(row.what)} | {_cell(row.how)} | {_cell(state_of(evidence, row))} |" for row in ROWS),
    ]
    return "\n".join(lines) + "\n"


def untouched_table() -> str:
    """The table before anything was looked at."""
    lines = ["| what | how | what was seen |", "|---|---|---|"]
    lines += [f"| {_cell(row.what)} | {_cell(row.how)} | {_cell(_untouched(row))} |" for row in ROWS]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A program's words in a cell: no line, no column, no markup of their own."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def write_page(page: Path, text: str) -> None:
    """Put the table between its marks; a page without them becomes the table alone. Raises OSError."""
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        before, after = "# What was seen on a GPU\n\n", "\n"
    new = f"{before}{BEGIN}\n\n{text}\n{END}{after}"
    replace_file(page, new.encode(errors="replace"), mode=0o644)

"""A report of ``prove`` as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator

from partage.lab.prove.model import ProofReport, ProofRow, ProofVerdict
from partage.lab.prove.proof_text import by_share, head, meaning, summary
from partage.text import printable

_READING = (
    "**kept**: what was seen is at least what was promised, also where nothing is promised. "
    "**weaker-than-promised**: it holds against a tenant that only works, and not against one that tries "
    "to avoid it. "
    "**broken**: it does not even hold against a tenant that only works. "
    "Evidence: **hardware** was seen on this node's GPU, **simulated** on a simulated MPS control daemon, "
    "**documented** was not tried here and rests on documents."
)


def proof_page(report: ProofReport) -> str:
    """The page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ProofReport) -> Iterator[str]:
    yield "# What the shares of this node guarantee"
    yield ""
    yield from (f"- {_escaped(line)}" for line in head(report))
    yield ""
    yield f"**{summary(report)}.**"
    yield meaning(report)
    yield from (f"\n> {_escaped(remark)}" for remark in report.remarks)
    for title, rows in by_share(report):
        yield ""
        yield f"## {_escaped(title)}"
        yield ""
        yield "| attack | states | promised | tried | seen | verdict | evidence |"
        yield "|---|---|---|---|---|---|---|"
        yield from map(_row, rows)
    yield ""
    yield _READING


def _row(row: ProofRow) -> str:
    verdict = str(row.verdict)
    strong = verdict if row.verdict in (ProofVerdict.KEPT, ProofVerdict.NOT_TRIED) else f"**{verdict}**"
    seen = row.seen or f"not tried: {row.reason}"
    cells = (row.attack, str(row.guarantee), row.promised, row.tried, seen)
    return f"| {' | '.join(map(_escaped, cells))} | {strong} | {row.evidence} |"


def _escaped(text: str) -> str:
    """One line, with the characters escaped that are special in Markdown."""
    line = printable(" ".join(text.split()))
    for special in "\\|`*<>[]":
        line = line.replace(special, f"\\{special}")
    return line

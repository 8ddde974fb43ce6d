"""A report as a page of Markdown, to be kept or sent."""

from __future__ import annotations

from collections.abc import Iterator

from partage.faces.prove.model import Report, Row, Verdict
from partage.faces.prove.words import by_share, head, summary

_READING = (
    "**kept**: what was seen is at least what was promised; where nothing is promised, that. "
    "**weaker-than-promised**: it holds a tenant who merely works, and not one who means to get around it. "
    "**broken**: it does not even hold a tenant who merely works. "
    "Evidence: **hardware** was seen on this node's GPU, **simulated** on a simulated MPS control daemon, "
    "**documented** was not tried here and rests on documents."
)


def markdown(report: Report) -> str:
    """The page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "# What the shares of this node guarantee"
    yield ""
    yield from (f"- {_escaped(line)}" for line in head(report))
    yield ""
    yield f"**{summary(report)}.**"
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


def _row(row: Row) -> str:
    verdict = str(row.outcome.verdict)
    strong = verdict if row.outcome.verdict in (Verdict.KEPT, Verdict.NOT_TRIED) else f"**{verdict}**"
    untried = row.outcome.verdict is Verdict.NOT_TRIED
    seen = f"not tried: {row.outcome.seen}" if untried else row.outcome.seen
    cells = (row.attack, str(row.guarantee), row.promised, row.tried, seen)
    return f"| {' | '.join(map(_escaped, cells))} | {strong} | {row.evidence} |"


def _escaped(text: str) -> str:
    """One line in which nothing means anything to Markdown."""
    line = " ".join(text.split())
    for special in "\\|`*<>[]":
        line = line.replace(special, f"\\{special}")
    return line

"""A report of ``prove`` in the terminal: a table for each share."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.answers.render.tables import plain_table, report_lines
from partage.lab.prove.model import ProofReport, ProofRow, ProofVerdict
from partage.lab.prove.proof_text import by_share, head, meaning, summary

_STYLES = {
    ProofVerdict.KEPT: "green",
    ProofVerdict.WEAKER: "yellow",
    ProofVerdict.BROKEN: "bold red",
    ProofVerdict.NOT_TRIED: "dim",
}


def proof_lines(report: ProofReport) -> Iterator[RenderableType]:
    """The machine, the tables, the number of verdicts, and what they mean."""
    tables = [_table(title, rows) for title, rows in by_share(report)]
    yield from report_lines(head(report), tables, report.remarks)
    yield Text(summary(report), style="bold")
    yield Text(meaning(report))


def _table(title: str, rows: list[ProofRow]) -> Table:
    table = plain_table(title, "Attack", "States", "Promised, and what was seen", "Verdict", "Evidence")
    for column in (0, 1, 3, 4):
        table.columns[column].no_wrap = True
    for row in rows:
        told = Text(row.promised)
        if row.share is not None:
            told.append(f"\n→ {row.found}", style="dim")
        verdict = Text(str(row.verdict), style=_STYLES[row.verdict])
        table.add_row(row.attack, str(row.guarantee), told, verdict, str(row.evidence))
    return table

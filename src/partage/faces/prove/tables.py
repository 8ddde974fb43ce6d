"""A report in the terminal: a table for each share."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.faces.prove.model import Report, Row, Verdict
from partage.faces.prove.words import by_share, head, summary
from partage.faces.render.tables import plain_table

_STYLES = {
    Verdict.KEPT: "green",
    Verdict.WEAKER: "yellow",
    Verdict.BROKEN: "bold red",
    Verdict.NOT_TRIED: "dim",
}


def lines(report: Report) -> Iterator[RenderableType]:
    """Everything, from the machine to the count of verdicts."""
    yield from map(Text, head(report))
    for title, rows in by_share(report):
        yield Text()
        yield _table(title, rows)
    yield Text()
    yield from (Text(f"! {remark}", style="yellow") for remark in report.remarks)
    yield Text(summary(report), style="bold")


def _table(title: str, rows: list[Row]) -> Table:
    table = plain_table(title, "Attack", "States", "Promised, and what was seen", "Verdict", "Evidence")
    for column in (0, 1, 3, 4):
        table.columns[column].no_wrap = True
    for row in rows:
        told = Text(row.promised)
        if row.share is not None:
            told.append(f"\n→ {row.outcome.seen}", style="dim")
        style = _STYLES[row.outcome.verdict]
        table.add_row(
            row.attack,
            str(row.guarantee),
            told,
            Text(str(row.outcome.verdict), style=style),
            str(row.evidence),
        )
    return table

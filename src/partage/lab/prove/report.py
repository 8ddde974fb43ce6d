"""A report of ``prove``: as a JSON document (``kind: Proof``), as tables or a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.answers.documents.lab import DocumentKind
from partage.answers.render.tables import plain_table, report_lines
from partage.lab.prove.model import AttackedShare, ProofReport, ProofRow, ProofVerdict
from partage.text import count_of, printable
from partage.units import format_bytes
from partage.values import grouped


def _derived(report: ProofReport, found: dict[str, Any]) -> dict[str, Any]:
    """How many rows have each verdict."""
    del found
    return {"summary": {str(verdict): report.count(verdict) for verdict in ProofVerdict}}


PROOF = DocumentKind(
    "Proof",
    "report of partage prove",
    "partage prove --report DIR writes one",
    16 * 2**20,
    ProofReport,
    _derived,
)


def share_words(share: AttackedShare) -> str:
    """``nvidia.com/gpu.shared: GPU 0, one of 4 shares of 19.9 GiB``."""
    size = format_bytes(share.memory_bytes)
    part = size if share.replicas == 1 else f"one of {share.replicas} shares, {size}"
    mig = ", MIG device" if share.device.startswith("MIG-") else ""
    return f"{share.resource}: GPU {share.gpu}{mig}, {part}"


def by_share(report: ProofReport) -> Iterator[tuple[str, list[ProofRow]]]:
    """The rows of each share with a title, in the order of the report; rows without a share come last."""
    found = grouped((row.share, row) for row in report.rows)
    without = found.pop(None, [])
    yield from ((share_words(share), rows) for share, rows in found.items() if share is not None)
    if without:
        yield "Not offered here", without


def summary(report: ProofReport) -> str:
    """``18 promises: 7 kept, 1 weaker than promised, 0 broken, 10 not tried``."""
    counts = ", ".join(f"{report.count(verdict)} {verdict.replace('-', ' ')}" for verdict in ProofVerdict)
    return f"{count_of(len(report.rows), 'promise')}: {counts}"


def meaning(report: ProofReport) -> str:
    """What the result means for somebody who gives these shares to tenants."""
    seen = {verdict: report.count(verdict) for verdict in ProofVerdict}
    where = "This was a simulation, and says nothing of a GPU. " if report.machine else ""
    if seen[ProofVerdict.BROKEN]:
        return f"{where}A promise is broken: do not rely on these shares before the rows above are explained."
    if seen[ProofVerdict.WEAKER]:
        return (
            f"{where}The shares hold for tenants that only work. One that tries to avoid a limit can, as the "
            "rows above say: give tenants whom you do not trust MIG devices or whole GPUs."
        )
    if not seen[ProofVerdict.KEPT]:
        return f"{where}Nothing was tried, so nothing is known of these shares."
    rest = " What was not tried is not known." if seen[ProofVerdict.NOT_TRIED] else ""
    return f"{where}What was tried held.{rest}"


def head(report: ProofReport) -> Iterator[str]:
    """What was run, where and when."""
    yield from report.gpus
    node = f"simulated machine {report.machine}, " if report.machine else ""
    yield f"{node}driver {report.driver.version}, CUDA {report.driver.cuda}"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"{report.at}, {versions}"
    yield " ".join(report.command)


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
        table.add_row(row.name, str(row.guarantee), told, verdict, str(row.evidence))
    return table


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
    cells = (row.name, str(row.guarantee), row.promised, row.tried, seen)
    return f"| {' | '.join(map(_escaped, cells))} | {strong} | {row.evidence} |"


def _escaped(text: str) -> str:
    """One line, with the characters escaped that are special in Markdown."""
    line = printable(" ".join(text.split()))
    for special in "\\|`*<>[]":
        line = line.replace(special, f"\\{special}")
    return line

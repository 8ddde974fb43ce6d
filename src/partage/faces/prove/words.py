"""A report in words: which share, how it came out, and what was run where."""

from __future__ import annotations

from collections.abc import Iterator

from partage.faces.prove.model import Report, Row, Verdict, Which
from partage.faces.words import count_of
from partage.units import format_bytes

_SUMMARY = {
    Verdict.KEPT: "kept",
    Verdict.WEAKER: "weaker than promised",
    Verdict.BROKEN: "broken",
    Verdict.NOT_TRIED: "not tried",
}
NOT_OFFERED = "Not offered here"


def share_words(share: Which) -> str:
    """``nvidia.com/gpu.shared: GPU 0, one of 4 shares of 19.9 GiB``."""
    size = format_bytes(share.memory_bytes)
    part = size if share.replicas == 1 else f"one of {share.replicas} shares, {size}"
    mig = ", MIG device" if share.device.startswith("MIG-") else ""
    return f"{share.resource}: GPU {share.gpu}{mig}, {part}"


def by_share(report: Report) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each share under its words, in the order of the report; those of none are the last."""
    found: dict[Which | None, list[Row]] = {}
    for row in report.rows:
        found.setdefault(row.share, []).append(row)
    for share, rows in found.items():
        if share is not None:
            yield share_words(share), rows
    if None in found:
        yield NOT_OFFERED, found[None]


def summary(report: Report) -> str:
    """``18 promises: 7 kept, 1 weaker than promised, 0 broken, 10 not tried``."""
    counts = ", ".join(f"{report.count(verdict)} {words}" for verdict, words in _SUMMARY.items())
    return f"{count_of(len(report.rows), 'promise')}: {counts}"


def head(report: Report) -> Iterator[str]:
    """What was run, where and when."""
    yield from report.gpus
    node = f"simulated machine {report.machine}, " if report.machine else ""
    yield f"{node}driver {report.driver}, CUDA {report.cuda}"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"{report.at}, {versions}"
    yield " ".join(report.command)

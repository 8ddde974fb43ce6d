"""Texts of a report of ``prove``: shares, numbers of verdicts, what was run and where."""

from __future__ import annotations

from collections.abc import Iterator

from partage.lab.prove.model import AttackedShare, ProofReport, ProofRow, ProofVerdict
from partage.text import count_of
from partage.units import format_bytes


def share_words(share: AttackedShare) -> str:
    """``nvidia.com/gpu.shared: GPU 0, one of 4 shares of 19.9 GiB``."""
    size = format_bytes(share.memory_bytes)
    part = size if share.replicas == 1 else f"one of {share.replicas} shares, {size}"
    mig = ", MIG device" if share.device.startswith("MIG-") else ""
    return f"{share.resource}: GPU {share.gpu}{mig}, {part}"


def by_share(report: ProofReport) -> Iterator[tuple[str, list[ProofRow]]]:
    """The rows of each share with a title, in the order of the report; rows without a share come last."""
    found: dict[AttackedShare | None, list[ProofRow]] = {}
    for row in report.rows:
        found.setdefault(row.share, []).append(row)
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

"""Who holds what of each GPU, and how much memory it uses: the rows of the page's tables."""

from __future__ import annotations

from collections.abc import Mapping

from partage.answers.documents.report import EntryRow, ReportDocument
from partage.answers.wording import who_holds
from partage.model.ids import GpuUuid, ShareId
from partage.model.share import Guarantee
from partage.plan.serve.ledger_entry import Certainty
from partage.values import Frozen


class MemoryUse(Frozen):
    """What a container uses of a GPU. peak_bytes: the highest since it began; None: not known. at_least: not
    all of its use is known. utilisation: its part of the GPU's time, 0 to 1; None: not known.
    """

    used_bytes: int
    peak_bytes: int | None = None
    at_least: bool = False
    utilisation: float | None = None


Uses = Mapping[tuple[GpuUuid, str], MemoryUse]
"""GPU and container, ``namespace/pod/container``, to what it uses."""


class HeldShares(Frozen):
    """What one container holds of one GPU under one resource. shares: ids. use: None: not known. by_memory:
    they are units of memory.
    """

    resource: str
    holders: tuple[str, ...]
    shares: tuple[ShareId, ...]
    since: str
    certainty: Certainty
    use: MemoryUse | None = None
    promised_bytes: int | None = None
    guarantee: Guarantee | None = None
    by_memory: bool = False


def sampled(report: ReportDocument) -> Uses:
    """What was sampled last. A container with several MIG devices of one GPU has their sum."""
    uses: dict[tuple[GpuUuid, str], MemoryUse] = {}
    for row in () if report.use is None else report.use.containers:
        if row.used_bytes is not None:
            key = row.gpu, f"{row.namespace}/{row.pod}/{row.container}"
            here = MemoryUse(row.used_bytes, row.peak_bytes, row.at_least, row.utilisation)
            uses[key] = _sum(uses[key], here) if key in uses else here
    return uses


def _sum(use: MemoryUse, other: MemoryUse) -> MemoryUse:
    peaks = (use.peak_bytes, other.peak_bytes)
    known = [peak for peak in peaks if peak is not None]
    peak = sum(known) if len(known) == len(peaks) else None
    parts = [busy for busy in (use.utilisation, other.utilisation) if busy is not None]
    return MemoryUse(
        use.used_bytes + other.used_bytes,
        peak,
        use.at_least or other.at_least,
        sum(parts) if parts else None,
    )


def watched(report: ReportDocument) -> Uses:
    """What the watchdog saw last."""
    return {
        (row.gpu, f"{row.namespace}/{row.pod}/{row.container}"): MemoryUse(row.used_bytes, None, row.at_least)
        for row in (report.watch.containers if report.watch else ())
    }


def holdings(report: ReportDocument) -> dict[int, list[HeldShares]]:
    """GPU index to who holds shares of it. Equal holders of one resource are one row. What was not sampled of
    them, the watchdog may have seen.
    """
    index_of, seen = report.gpu_of_share, {**watched(report), **sampled(report)}
    uuids = {gpu.index: gpu.uuid for gpu in report.gpus}
    promises = {
        share: offering
        for gpu_offer in report.offer.values()
        for offering in gpu_offer
        for share in offering.share_ids
    }
    grouped: dict[tuple[int, str, tuple[str, ...]], list[EntryRow]] = {}
    for entry in report.held:
        names = who_holds(entry.holders, entry.claim)
        # Shares whose holder is not known are not known to be one container's.
        key = index_of.get(entry.id, -1), entry.resource, names or (f"\0{entry.id}",)
        grouped.setdefault(key, []).append(entry)
    found: dict[int, list[HeldShares]] = {}
    for (index, resource, names), entries in grouped.items():
        offered = [promises[entry.id] for entry in entries if entry.id in promises]
        alone = names[0] if len(names) == 1 and index in uuids else ""
        found.setdefault(index, []).append(
            HeldShares(
                resource=resource,
                holders=() if names[0].startswith("\0") else names,
                shares=tuple(entry.id for entry in entries),
                since=min(entry.since for entry in entries),
                certainty=entries[0].certainty,
                use=seen.get((uuids[index], alone)) if alone else None,
                promised_bytes=sum(offering.memory_bytes for offering in offered) if offered else None,
                guarantee=offered[0].guarantee if offered else None,
                by_memory=any(offering.by_memory for offering in offered),
            )
        )
    return found

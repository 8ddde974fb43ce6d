"""Evidence from the agents' own history: days of one or more nodes, put together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from partage.model.usage_day import BUSY_UP_TO, UsageDay, WorkloadDay
from partage.plan.history.evidence import BUSY_PART, Evidence


def gather_days(days: Iterable[UsageDay]) -> tuple[Evidence, ...]:
    """The evidence of each workload, by name. A node and date count once."""
    rows: dict[str, dict[str, list[WorkloadDay]]] = {}
    ordered = sorted({(day.node, day.date): day for day in days}.values(), key=lambda day: day.date)
    for day in ordered:
        for row in day.workloads:
            if row.samples:
                rows.setdefault(row.workload, {}).setdefault(day.node, []).append(row)
    return tuple(_evidence(name, list(rows[name].values())) for name in sorted(rows))


def unattributed_part(days: Iterable[UsageDay]) -> float:
    """Which part of the used memory belongs to no container and no job."""
    days = tuple(days)
    used = sum(day.used_bytes * day.samples for day in days)
    rest = sum(day.rest_bytes * day.samples for day in days)
    return min(1.0, rest / used) if used else 0.0


def _evidence(name: str, nodes: Sequence[Sequence[WorkloadDay]]) -> Evidence:
    """nodes: the days of each node, by date."""
    rows = [row for days in nodes for row in days]
    # The same peak on two days is of one run, which was shorter and less steady on the first; or of programs
    # that always take as much.
    highest = max(rows, key=lambda row: (row.peak_bytes, -row.spread))
    longest = max(rows, key=lambda row: row.longest_s)
    first, last = min(row.first_s for row in rows), max(row.last_s for row in rows)
    run_s = sum(row.run_s for row in rows)
    shares = [row.share_bytes for row in rows if row.share_bytes is not None]
    devices = max(1, *(row.devices for row in rows))
    # A run that goes on over midnight is on both days.
    runs = sum(days[0].runs + sum(row.started for row in days[1:]) for days in nodes)
    return Evidence(
        workload=name,
        runs=-(-runs // devices),
        samples=sum(row.samples for row in rows),
        span_s=float(last - first),
        coverage=min(1.0, sum(row.seen_s for row in rows) / run_s) if run_s else 1.0,
        peak_bytes=highest.peak_bytes,
        peak_at_s=float(highest.peak_at_s),
        steady=highest.spread,
        exact=all(row.exact for row in rows),
        growing=longest.growing,
        full=max(row.full for row in rows),
        sm_p95=_busy(rows),
        share_bytes=max(shares, default=None),
        processes=max(row.processes for row in rows) or 1,
        coarse=True,
        at_once=-(-sum(max(row.at_once for row in days) for days in nodes) // devices),
        devices=devices,
    )


def _busy(rows: Sequence[WorkloadDay]) -> float | None:
    """The activity that 95 % of the samples do not exceed, rounded up to the end of its class."""
    counts = [sum(row.busy[at] for row in rows if at < len(row.busy)) for at in range(len(BUSY_UP_TO))]
    rank, seen = ceil(BUSY_PART * sum(counts)), 0
    for up_to, count in zip(BUSY_UP_TO, counts, strict=True):
        seen += count
        if rank and seen >= rank:
            return up_to
    return None

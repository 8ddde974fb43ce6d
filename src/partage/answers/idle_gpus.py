"""Which GPUs are held and have done nothing for an hour, by the report of their node's agent."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from partage.plan.last_hour import MINUTES
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument
    from partage.answers.documents.use import HourRow

_FEWEST_MINUTES = 50
"""So many minutes of the hour have to be sampled, or nothing is said: a sample may be late, an agent may have
been restarted."""


class IdleGpus(Frozen):
    """Indexes of GPUs. idle: held for an hour, and no sample of that hour found work on them. unknown: held
    for an hour, and not sampled, or not measured.
    """

    idle: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()


def idle_gpus(report: ReportDocument) -> IdleGpus:
    """Of this node. An hour is the one that ends with the last sample, or with the report where there is
    none."""
    use = report.use
    sampled_at = None if use is None else use.sampled_at
    begins = _time(sampled_at or report.at) - timedelta(minutes=MINUTES)
    index_of = report.gpu_of_share
    held = {
        index_of[entry.id] for entry in report.held if entry.id in index_of and _time(entry.since) <= begins
    }
    idle, unknown = [], []
    for gpu in report.gpus:
        if gpu.index not in held:
            continue
        works = _works(None if use is None else use.hour.get(gpu.uuid))
        if works is None:
            unknown.append(gpu.index)
        elif not works:
            idle.append(gpu.index)
    return IdleGpus(tuple(idle), tuple(unknown))


def _works(hour: HourRow | None) -> bool | None:
    """Whether any sample of the hour found work; None: it is not known."""
    seen = [] if hour is None else [part for part in hour.utilisation if part is not None]
    if any(seen):
        return True
    return False if len(seen) >= _FEWEST_MINUTES else None


def _time(at: str) -> datetime:
    return datetime.fromisoformat(at)

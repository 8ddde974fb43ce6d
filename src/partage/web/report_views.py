"""How nodes are shown whose agents' reports are known: among many, and on a page of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from partage.answers.documents.report import ReportDocument, ReportedGpuRow
from partage.answers.node_problems import problems_of
from partage.answers.share_counts import ShareCount, ShareCounts, count_shares, works
from partage.edges.files.catalogue import geometry_of
from partage.plan.usage import MINUTES
from partage.serve_http.pages import page
from partage.serve_http.pages.markup import Child, element, html, moment
from partage.serve_http.pages.node_page import STANDINGS, Sections, node_sections, standing_of
from partage.serve_http.pages.sources import NodeReport
from partage.text import count_of, gpus
from partage.values import Frozen
from partage.web.glance import Glance, NodeTotals, mini

if TYPE_CHECKING:
    from partage.answers.documents.use import HourRow


_PROBLEMS = 3
"""So many problems of a node are said among many nodes; its own page has all."""


class ReportViews:
    """The views of ``FleetReports``."""

    standings: ClassVar[Mapping[str, str]] = {
        "no report": "No report of the node could be read.",
        **STANDINGS,
        "not up to date": "The node does not answer, or its report cannot be read: this is as it was then.",
        "old report": "The report is more than a day old.",
    }

    def glance(self, node: NodeReport) -> Glance:
        """Its GPUs as small bars, and what is wrong."""
        report = node.report
        if report is None:
            problem = element("p", node.trouble, class_="problem")
            return Glance((problem,), self.standing(node), self._words(node))
        counts, idle = count_shares(report), idle_gpus(report)
        totals = NodeTotals(
            gpus=len(report.gpus),
            broken=sum(not works(gpu) for gpu in report.gpus),
            shares=counts.by_resource,
            idle=len(idle.idle),
            unknown=len(idle.unknown),
            changing=len(report.pending),
        )
        return Glance(
            _about(report, _late(node), counts, idle),
            self.standing(node),
            self._words(node),
            None if node.trouble else totals,
        )

    def sections(self, node: NodeReport) -> Sections:
        """As the agent's own page has them."""
        if node.report is None:
            problem = element("p", node.trouble, class_="problem")
            return {"state": html(element("section", problem, id="state"))}
        planned = node.report.planner_input
        inventory = None if planned is None else planned.snapshot.observed.node.inventory
        sections = dict(node_sections(node.report, inventory, geometry_of))
        if node.trouble:
            problem = element("p", *_late(node), class_="problem")
            sections["state"] = html(element("section", problem, id="late")) + sections["state"]
        return sections

    def grouped(self, sections: Sections) -> str:
        """As on the agent's own page."""
        return page.grouped(sections)

    def standing(self, node: NodeReport) -> tuple[str, str]:
        """In a word how it is."""
        if node.report is None:
            return "no report", "bad"
        if node.old:
            return "old report", "warn"
        return ("not up to date", "warn") if node.trouble else standing_of(node.report)

    def _words(self, node: NodeReport) -> Sequence[str]:
        """Problems, products, strategies, UUIDs, resources and pods."""
        report = node.report
        if report is None:
            return (node.trouble,)
        return [
            self.standing(node)[0],
            node.trouble,
            *problems_of(report),
            *(gpu.product for gpu in report.gpus),
            *(str(gpu.strategy) for gpu in report.gpus if gpu.strategy),
            *(gpu.uuid for gpu in report.gpus),
            *(str(resource.name) for resource in report.resources),
            *(f"{who.namespace}/{who.pod}" for entry in report.held for who in entry.holders),
            *dict.fromkeys(f"claim {entry.claim}" for entry in report.held if entry.claim),
        ]


def _late(node: NodeReport) -> list[Child]:
    """Since when its report is not the present one, and why; empty where it is."""
    if not node.trouble:
        return []
    since: list[Child] = [" since ", moment(node.since)] if node.since else []
    return ["Not up to date", *since, f": {node.trouble}"]


def _about(report: ReportDocument, late: list[Child], counts: ShareCounts, idle: IdleGpus) -> list[Child]:
    lines: list[list[Child]] = [late] if late else []
    lines += [[line] for line in problems_of(report)]
    more = len(lines) - _PROBLEMS
    return [
        element(
            "p",
            f"{count_of(len(report.gpus), 'GPU')}, {_held(report, counts)}; updated ",
            moment(report.at),
            class_="small",
        ),
        element("p", *(_mini(gpu, counts.by_gpu.get(gpu.index)) for gpu in report.gpus), class_="minis"),
        *(element("p", *line, class_="problem small") for line in lines[:_PROBLEMS]),
        element("p", f"and {count_of(more, 'other problem')}", class_="problem small") if more > 0 else None,
        element("p", f"{gpus(idle.idle)} held but idle for an hour", class_="unsettled small")
        if idle.idle
        else None,
        element("p", f"{count_of(len(report.pending), 'GPU')} with pending changes", class_="unsettled small")
        if report.pending
        else None,
    ]


def _held(report: ReportDocument, counts: ShareCounts) -> str:
    """``shares: 3 held, 5 free``, the same of units of memory, or both."""
    found: dict[str, ShareCount] = {}
    for resource in report.resources:
        by_memory = any(device.by_memory for gpu in resource.gpus for device in gpu.devices)
        word = "units of memory" if by_memory else "shares"
        found[word] = found.get(word, ShareCount()) + counts.by_resource[resource.name]
    return "; ".join(f"{word}: {count}" for word, count in found.items()) or "no shares"


def _mini(gpu: ReportedGpuRow, count: ShareCount | None) -> Child:
    """How many of its shares are held, and how many cannot be used."""
    count = count or ShareCount()
    text = f"GPU {gpu.index}, {gpu.strategy or 'nothing offered'}: {count}"
    text += f", {gpu.trouble}" if gpu.trouble else ""
    held, lost = (part / count.all if count.all else None for part in (count.held, count.not_usable))
    return mini(held, text, str(gpu.strategy or "none"), trouble=bool(gpu.trouble), lost=lost or 0.0)


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

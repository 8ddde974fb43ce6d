"""How nodes are shown whose agents' reports are known: among many, and on a page of their own."""

from __future__ import annotations

from collections.abc import Sequence

from partage.edges.files.catalogue import geometry_of
from partage.faces.documents.report import ReportDocument, ReportedGpuRow
from partage.faces.share_counts import ShareCount, count_by_gpu, count_by_resource
from partage.faces.web import page
from partage.faces.web.fleet_page import mini
from partage.faces.web.markup import Child, element, html
from partage.faces.web.moment import moment
from partage.faces.web.node_page import Sections, node_sections, standing_of
from partage.faces.web.sources import NodeReport
from partage.text import count_of


class ReportViews:
    """The views of ``FleetReports``."""

    def row(self, node: NodeReport) -> Sequence[Child]:
        """The node's state, its GPUs as small bars, and what is wrong."""
        if node.report is None:
            return (element("p", node.trouble, class_="problem"),)
        return _about(node.report, _late(node), self.standing(node))

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

    def words(self, node: NodeReport) -> Sequence[str]:
        """Problems, products, strategies, UUIDs, resources and pods."""
        report = node.report
        if report is None:
            return (node.trouble,)
        return [
            self.standing(node)[0],
            node.trouble,
            *report.messages,
            *report.troubles.values(),
            *(gpu.product for gpu in report.gpus),
            *(str(gpu.strategy) for gpu in report.gpus if gpu.strategy),
            *(gpu.uuid for gpu in report.gpus),
            *(str(one.name) for one in report.resources),
            *(f"{who.namespace}/{who.pod}" for entry in report.held for who in entry.holders),
        ]


def _late(node: NodeReport) -> list[Child]:
    """Since when its report is not the present one, and why; empty where it is."""
    if not node.trouble:
        return []
    since: list[Child] = [" since ", moment(node.since)] if node.since else []
    return ["Not up to date", *since, f": {node.trouble}"]


def _about(report: ReportDocument, late: list[Child], standing: tuple[str, str]) -> list[Child]:
    word, kind = standing
    counts = count_by_gpu(report)
    lines: list[list[Child]] = [[line] for line in (*report.messages, *report.troubles.values())]
    if late:
        lines.insert(0, late)
    waiting = f"{count_of(len(report.waiting), 'GPU')} waiting to change"
    return [
        element(
            "p",
            element("strong", word, class_=f"chip {kind}"),
            f" {count_of(len(report.gpus), 'GPU')}, {_held(report)}; as of ",
            moment(report.at),
        ),
        element("p", *(_mini(gpu, counts.get(gpu.index)) for gpu in report.gpus)),
        *(element("p", *line, class_="problem small") for line in lines[:3]),
        element("p", waiting, class_="unsettled small") if report.waiting else None,
    ]


def _held(report: ReportDocument) -> str:
    """``3 of 8 shares held, 5 free``, the same of units of memory, or both."""
    counts = count_by_resource(report)
    found: dict[str, ShareCount] = {}
    for one in report.resources:
        by_memory = any(device.by_memory for gpu in one.gpus for device in gpu.devices)
        word = "units of memory" if by_memory else "shares"
        found[word] = found.get(word, ShareCount()) + counts[one.name]
    return "; ".join(f"{word}: {count}" for word, count in found.items()) or "no shares"


def _mini(gpu: ReportedGpuRow, count: ShareCount | None) -> Child:
    """How many of its shares are held, and how many cannot be used."""
    count = count or ShareCount()
    said = f"GPU {gpu.index}, {gpu.strategy or 'nothing offered'}: {count}"
    said += f", {gpu.trouble}" if gpu.trouble else ""
    held, lost = (part / count.all if count.all else None for part in (count.held, count.not_usable))
    return mini(held, said, str(gpu.strategy or "none"), trouble=bool(gpu.trouble), lost=lost or 0.0)

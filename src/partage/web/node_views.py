"""How nodes are shown among many, what each adds to the totals, and how on a page of their own: by reports of
their agents, or by what only the cluster has of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar
from xml.etree.ElementTree import Element

from msgspec import field

from partage.answers.documents.report import ReportDocument, ReportedGpuRow
from partage.answers.share_counts import ShareCount, ShareCounts, count_shares, problems_of, works
from partage.edges.files.catalogue import geometry_of
from partage.model.ids import MEMORY_RESOURCE, ResourceName
from partage.plan.usage import MINUTES
from partage.serve_http.pages import markup
from partage.serve_http.pages.markup import Child, element, html, moment
from partage.serve_http.pages.node_page import STANDINGS, Sections, node_sections, standing_of
from partage.serve_http.pages.sources import NodeReport
from partage.text import count_of, gpus, listed
from partage.units import format_bytes
from partage.values import Frozen
from partage.web.cluster_fleet import PublishedNode
from partage.web.published_page import (
    STATES,
    asked_of,
    in_places,
    models_of,
    published_problems,
    sections_of,
    state_of,
    strategy_of,
)

if TYPE_CHECKING:
    from partage.answers.documents.use import HourRow


IDLE, CHANGING = "idle", "changing"
"""Filters beside those of how nodes are."""


class NodeTotals(Frozen):
    """What a node adds to the totals. broken: GPUs that are lost or unhealthy. shares: of each resource,
    held, free and not usable. idle: GPUs that are held and have done nothing for an hour; None: where
    the nodes come from, nobody says it. unknown: of how many it is not known. changing: GPUs that are going
    to change.
    """

    gpus: int = 0
    broken: int = 0
    shares: Mapping[ResourceName, ShareCount] = field(default_factory=dict)
    idle: int | None = 0
    unknown: int = 0
    changing: int = 0


class Glance(Frozen):
    """A node among many. row: what stands below its name. standing: in a word how it is, and the class of the
    style sheet for it: good, warn or bad. words: what a search finds it by. totals: None: what is known of it
    is not of now, and is not counted.
    """

    row: Sequence[Child]
    standing: tuple[str, str]
    words: Sequence[str] = ()
    totals: NodeTotals | None = None

    @property
    def filters(self) -> Mapping[str, str]:
        """The chips that show it: name in the URL to what the chip says, without its number."""
        word, _ = self.standing
        found = {word.replace(" ", "-"): word}
        if self.totals is not None and self.totals.idle:
            found[IDLE] = "with idle GPUs"
        if self.totals is not None and self.totals.changing:
            found[CHANGING] = "with pending changes"
        return found


def mini(part: float | None, text: str, kind: str, *, trouble: bool = False, lost: float = 0.0) -> Element:
    """A small bar: how much of a GPU or of a resource is in use, from 0 to 1; None: it has nothing to use.
    lost: how much of it cannot be used, hatched.
    """
    width = min(100.0, 100 * part) if part else 0
    gone = min(100.0 - width, 100 * lost)
    return element(
        "svg",
        element("title", text),
        element("rect", class_="box uncut" if part is None else "box free"),
        element("rect", width=f"{width:.1f}%", height="100%", class_="held") if width else None,
        element("rect", x=f"{width:.1f}%", width=f"{gone:.1f}%", height="100%", class_="withdrawn")
        if gone
        else None,
        class_=f"mini {kind}{' trouble' if trouble else ''}",
        role="img",
        aria_label=text,
    )


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
        return markup.grouped(sections)

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


class PublishedViews:
    """The views of ``ClusterFleet``."""

    standings = STATES

    def glance(self, node: PublishedNode) -> Glance:
        """Its resources as small bars, and what is wrong."""
        lines = list(dict.fromkeys(published_problems(node)))
        changing = f"{count_of(len(node.pending), 'GPU')} with pending changes"
        row: list[Child] = [
            element("p", models_of(node), _requested(node), class_="small"),
            element("p", *_minis(node), class_="minis"),
            *(element("p", line, class_="problem small") for line in lines[:_PROBLEMS]),
            element("p", changing, class_="unsettled small") if node.pending else None,
        ]
        return Glance(row, state_of(node), _words(node), _totals(node))

    def sections(self, node: PublishedNode) -> Sections:
        """Its own page."""
        return sections_of(node)

    def grouped(self, sections: Sections) -> str:
        """Those sections in their places."""
        return in_places(sections)


def _words(node: PublishedNode) -> list[str]:
    """Problems, models, resources and pods."""
    return [
        state_of(node)[0],
        *published_problems(node),
        *(model for model, _ in node.models),
        *(resource.name for resource in node.resources),
        *(resource.guarantee for resource in node.resources),
        *(f"{pod.namespace}/{pod.name}" for pod in node.pods or ()),
        node.policy,
    ]


def _totals(node: PublishedNode) -> NodeTotals:
    """What pods ask for counts as held. Which GPUs are broken, or idle, is not published."""
    return NodeTotals(
        gpus=sum(count for _, count in node.models),
        shares={
            ResourceName(resource.name): ShareCount(
                held=resource.requested,
                free=max(0, resource.allocatable - resource.requested),
                not_usable=max(0, resource.capacity - resource.allocatable),
            )
            for resource in node.resources
            if resource.requested is not None
        },
        idle=None,
        changing=len(node.pending),
    )


def _requested(node: PublishedNode) -> str:
    said = [f"{asked_of(resource)} {resource.name}" for resource in node.resources]
    return f"; asked for: {listed(said, 4)}" if said else ""


def _minis(node: PublishedNode) -> Iterator[Child]:
    """One for each GPU where amounts are published, else one for each resource."""
    kind = strategy_of(node) or "none"
    if node.memory is not None:
        for device in node.memory.devices:
            held, total = (format_bytes(units * device.unit_bytes) for units in (device.used, device.total))
            part = device.used / device.total if device.total else None
            yield mini(part, f"GPU {device.index}: {held} of {total} held", kind)
    for resource in node.resources:
        if node.memory is None or resource.name != MEMORY_RESOURCE:
            part = (
                None
                if resource.requested is None or not resource.allocatable
                else resource.requested / resource.allocatable
            )
            yield mini(part, f"{resource.name}: {asked_of(resource)} asked for", kind)

"""Every word and every colour of a page stands in its legend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from partage.agent.options import Intervals
from partage.agent.status.readiness import readiness_of
from partage.answers.documents.report import ReportDocument
from partage.answers.report import report_document
from partage.edges.files.catalogue import geometry_of
from partage.model.gpu import Inventory
from partage.model.health import HealthState
from partage.model.mps import DaemonPhase
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.plan.serve.ledger_entry import NAMED, Certainty
from partage.serve_http.http import PageRequest, Stream
from partage.serve_http.pages import markup
from partage.serve_http.pages.legend import CERTAINTIES, fleet_legend, node_legend
from partage.serve_http.pages.markup import html
from partage.serve_http.pages.node_page import STANDINGS, node_sections
from partage.serve_http.pages.sources import FleetReports, ReportFolder
from partage.web.fleet_page import FleetPages
from partage.web.node_views import PublishedViews, ReportViews
from tests.answers.reports import AT_S
from tests.web.sample_nodes import mixed, thirty

STYLE = (Path(markup.__file__).parent / "static" / "page.css").read_text()
SHAPE = {"box", "bar", "mini", "bars"}
"""Classes that say where something is drawn, and not how."""


class Drawn(HTMLParser):
    """What stands in a part of a page. words: dt elements. boxes: classes of its rectangles. chips: what they
    say. classes: of all elements.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.words: set[str] = set()
        self.boxes: set[str] = set()
        self.chips: set[str] = set()
        self.classes: set[str] = set()
        self._open: set[str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = (dict(attrs).get("class") or "").split()
        self.classes.update(classes)
        if tag == "rect":
            self.boxes.update(classes)
        self._open = self.words if tag == "dt" else self.chips if "chip" in classes else None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._open.add(data)
            self._open = None


NODE = Drawn(html(node_legend(STANDINGS)))
REPORTS = Drawn(html(fleet_legend(ReportViews.standings)))
PUBLISHED = Drawn(html(fleet_legend(PublishedViews.standings)))
LEGENDS = pytest.mark.parametrize("legend", [NODE, REPORTS, PUBLISHED], ids=["node", "reports", "cluster"])


@LEGENDS
def test_every_state_of_a_gpu_and_every_strategy_is_explained(legend: Drawn) -> None:
    states = {str(one) for one in HealthState} | {"held", "free", "not usable", "lost", "pending changes"}
    assert states | {strategy.traits.word for strategy in Strategy} <= legend.words | {"healthy"}
    assert {str(one) for one in Strategy} <= legend.classes, "each has its colour"


def test_every_word_of_one_nodes_page_is_explained() -> None:
    assert {*STANDINGS, *CERTAINTIES.values(), "cordoned", "not known"} <= NODE.words
    assert set(CERTAINTIES) == set(Certainty) - set(NAMED), "the others are said without a word"
    assert {f"guarantee {one}" for one in Guarantee} <= NODE.words
    assert {f"MPS daemon {one}" for one in DaemonPhase} <= NODE.words


def test_every_state_of_a_node_among_others_is_explained() -> None:
    assert set(ReportViews.standings) <= REPORTS.words
    assert set(PublishedViews.standings) <= PUBLISHED.words


def test_every_box_that_the_style_sheet_colours_is_shown_in_the_legend() -> None:
    coloured = set(re.findall(r"(?<![.\w])rect\.([a-z-]+)", STYLE)) - SHAPE
    assert {"held", "planned", "withdrawn"} <= coloured
    assert coloured <= NODE.boxes | REPORTS.boxes
    assert {one for one in coloured if one != "trouble"} <= NODE.boxes


def documents(machine: Path) -> Iterator[tuple[ReportDocument, Inventory]]:
    """A healthy node, one with a sick GPU, and one without a usable GPU."""
    for faults in ({}, {7: 79}, dict.fromkeys(range(8), 79)):
        status = mixed(machine, faults=faults)
        assert status.report is not None
        document = report_document(status.report, status, readiness_of(status, Intervals()))
        yield document, status.report.node.inventory


def test_what_is_drawn_for_a_node_is_in_its_legend(tmp_path: Path) -> None:
    chips: set[str] = set()
    for document, inventory in documents(tmp_path / "machine.yaml"):
        for text in node_sections(document, inventory, geometry_of).values():
            drawn = Drawn(text)
            assert drawn.boxes - SHAPE <= NODE.boxes
            chips |= drawn.chips
    assert chips == {"healthy", "degraded", "no usable GPU"}
    assert chips <= NODE.words


def test_what_is_drawn_for_many_nodes_is_in_their_legend(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    thirty(reports, tmp_path / "machine.yaml")
    fleet = FleetReports(ReportFolder(reports, clock=lambda: AT_S), pause_s=60.0)
    try:
        pages: FleetPages[Any] = FleetPages(fleet, ReportViews())
        answer = pages.pages()["/"](PageRequest("/", {}))
    finally:
        fleet.close()
    assert not isinstance(answer, Stream)
    drawn = Drawn(answer[2].decode())
    assert drawn.boxes - SHAPE <= REPORTS.boxes
    words = {re.sub(r"^\d+ ", "", chip) for chip in drawn.chips} - {"nodes"}
    assert {"no report", "no usable GPU", "with idle GPUs"} <= words
    assert words <= REPORTS.words

"""The page of the agent's own node: ``/``, and ``/events`` for what changes: the sections of an open page
that have changed since the last event.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus

from partage.agent.options import Intervals
from partage.agent.status.readiness import readiness_of
from partage.agent.status.status import AgentStatus
from partage.answers.report import report_document
from partage.edges.files.catalogue import geometry_of
from partage.serve_http.http import Answer, Page, PageRequest, Stream
from partage.serve_http.http_access import STATIC
from partage.serve_http.pages import markup
from partage.serve_http.pages.legend import node_legend
from partage.serve_http.pages.node_page import STANDINGS, Sections, node_sections

_LOOK_EVERY_S = 0.5
"""Seconds between two looks while a page is open. Nobody looks while none is."""
_KEEP_ALIVE_S = 15.0
"""So often something is sent, so that both ends notice when the other has gone."""


def changes(
    sections: Callable[[], tuple[object, Callable[[], Mapping[str, str]]]],
    runs: Callable[[], bool],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Events as JSON: ``sections`` (id to HTML), ``order``; or ``reload`` where sections have come or gone.

    sections: a mark that is another one when something may have changed, and what makes the sections.
    """
    mark, make = sections()
    before = make()
    yield ""
    silent_s = 0.0
    while runs():
        pause(_LOOK_EVERY_S)
        silent_s += _LOOK_EVERY_S
        last, (mark, make) = mark, sections()
        if mark != last:
            now = make()
            event = difference(before, now)
            before = now
            if event:
                silent_s = 0.0
                yield event
        if silent_s >= _KEEP_ALIVE_S:
            silent_s = 0.0
            yield ""


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The event from one to the other; empty where nothing has changed. ``order``: all ids, where they stand
    in another order than before."""
    if before.keys() != now.keys():
        return json.dumps({"reload": True})
    changed = {name: text for name, text in now.items() if before[name] != text}
    order = {} if list(before) == list(now) else {"order": list(now)}
    return json.dumps({"sections": changed, **order}) if changed or order else ""


_FIGURES_EVERY_S = 5.0
"""How old figures of use are at most on an open page, in seconds."""

_NONE: Sections = {"state": '<section id="state"><p>The agent has not looked at the node yet.</p></section>'}


class AgentPage:
    """Makes the page from the last report, at most once for each: every open page gets the same text."""

    def __init__(self, status: Callable[[], AgentStatus], intervals: Intervals, node_name: str) -> None:
        self._status = status
        self._intervals = intervals
        self._title = f"{node_name or 'Node'}: GPUs"
        self._lock = threading.Lock()
        self._made: tuple[object, Sections] | None = None

    def pages(self) -> dict[str, Page]:
        """By path."""
        return {"/": self._page, "/events": self._events, **dict.fromkeys(STATIC, static_page)}

    def _page(self, _: PageRequest) -> Answer:
        source = "The agent of this node, as it is now. Nothing here can change anything."
        body = markup.document(
            self._title,
            markup.grouped(self._sections()),
            events="/events",
            top=node_legend(STANDINGS),
            source=source,
        )
        return HTTPStatus.OK, "text/html; charset=utf-8", body

    def _events(self, _: PageRequest) -> Stream:
        def events(runs: Callable[[], bool]) -> Iterator[str]:
            return changes(lambda: (self._mark(), self._sections), runs)

        return Stream(events)

    def _mark(self) -> tuple[object, ...]:
        """What makes the page another one if it changes: the turn, the watchdog's check, what is wrong,
        and the time, since figures of use change by themselves.
        """
        status = self._status()
        report, watched = status.report, status.watch_observation()
        readiness = readiness_of(status, self._intervals)
        codes = tuple(reason.code for reason in (*readiness.unhealthy, *readiness.degraded))
        figures = int(status.clock() // _FIGURES_EVERY_S)
        return report and report.made.number, watched and watched.at_s, codes, figures

    def _sections(self) -> Mapping[str, str]:
        status = self._status()
        report = status.report
        if report is None:
            return _NONE
        mark = self._mark()
        with self._lock:
            if self._made is None or self._made[0] != mark:
                status.usage()  # so that what was sampled last is new, and stays so while a page is open
                document = report_document(report, status, readiness_of(status, self._intervals))
                self._made = mark, node_sections(document, report.node.inventory, geometry_of)
            return self._made[1]


def static_page(request: PageRequest) -> Answer:
    """The style sheet or the script."""
    kind, content = markup.static_file(request.path.rpartition("/")[2])
    return HTTPStatus.OK, kind, content

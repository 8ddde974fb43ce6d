"""The pages that an agent serves: metrics, the report, probes, and its page for a browser."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from msgspec import Raw

from partage.agent.options import Intervals
from partage.agent.status.readiness import Readiness, readiness_of, stall_reason
from partage.agent.status.status import AgentStatus
from partage.answers.report import health_document, report_document
from partage.edges.hardware.supervisor import HelperState
from partage.model.dcgm_names import DcgmNames
from partage.serve_http.http import Answer, Page, PageRequest, Stream, json_answer
from partage.serve_http.http_access import STATIC

if TYPE_CHECKING:
    from partage.serve_http.metrics.metrics import HelperOf, MetricsWriter

    MakeWriter = Callable[[AgentStatus, Intervals, HelperOf | None, DcgmNames, str], MetricsWriter]


def import_metrics() -> MakeWriter:
    """What makes the writer of the metrics of a node that a kubelet gives away."""
    from partage.serve_http.metrics.metrics import metrics_writer

    return metrics_writer


def agent_pages(
    status: AgentStatus,
    intervals: Intervals,
    helper: Callable[[], HelperState] | None,
    node_name: str = "",
    dcgm: DcgmNames = DcgmNames.OFF,
    *,
    metrics_of: Callable[[], MakeWriter] = import_metrics,
) -> dict[str, Page]:
    """What an agent serves. helper: None where the hardware is in the agent's own process. metrics_of:
    imports what makes the writer of the metrics, at the first scrape: not every node is scraped."""
    metrics: list[Callable[[str], tuple[bytes, str]]] = []

    def metrics_page(request: PageRequest) -> Answer:
        if not metrics:
            make = metrics_of()
            metrics.append(make(status, intervals, helper, dcgm, node_name or socket.gethostname()))
        body, content_type = metrics[0](request.accept)
        return HTTPStatus.OK, content_type, body

    def report_page(_: PageRequest) -> Answer:
        report = status.report
        if report is None:
            return json_answer({"error": "no report yet"}, HTTPStatus.SERVICE_UNAVAILABLE)
        return json_answer(report_document(report, status, readiness_of(status, intervals)))

    def health_page(_: PageRequest) -> Answer:
        readiness = readiness_of(status, intervals)
        return json_answer(health_document(readiness), _probe_status(healthy=not readiness.unhealthy))

    def life_page(_: PageRequest) -> Answer:
        reason = stall_reason(status, intervals)
        readiness = Readiness((reason,) if reason else (), ())
        return json_answer(health_document(readiness), _probe_status(healthy=reason is None))

    return {
        **browser_pages(lambda: status, intervals, node_name),
        "/metrics": metrics_page,
        "/report.json": report_page,
        "/history.json": lambda _: _history_answer(status.history),
        "/healthz": health_page,
        "/livez": life_page,
    }


def _history_answer(history: Callable[[], Iterable[Raw]] | None) -> Answer:
    """The history of use."""
    from partage.answers.documents.use import history_document

    if history is None:
        return json_answer({"error": "this agent keeps no history (--history 0)"}, HTTPStatus.NOT_FOUND)
    return json_answer(history_document(history()))


def browser_pages(status: Callable[[], AgentStatus], intervals: Intervals, node_name: str) -> dict[str, Page]:
    """The page of the node, and what it needs. Imported when a browser asks for the first time."""
    made: list[Mapping[str, Page]] = []

    def page(request: PageRequest) -> Answer | Stream:
        if not made:
            from partage.serve_http.pages.agent_page import AgentPage

            made.append(AgentPage(status, intervals, node_name).pages())
        return made[0][request.path](request)

    return dict.fromkeys(("/", "/events", *STATIC), page)


def _probe_status(*, healthy: bool) -> HTTPStatus:
    """The status that a probe understands."""
    return HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE

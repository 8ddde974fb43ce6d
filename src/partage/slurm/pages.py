"""The pages that the agent of a compute node of Slurm serves: metrics, history, probes."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from partage.agent.status.readiness import Readiness, ReadinessReason
from partage.answers.report import health_document
from partage.edges.hardware.supervisor import HelperState
from partage.serve_http.agent_pages import history_answer, probe_status
from partage.serve_http.http import Answer, Page, PageRequest, json_answer
from partage.slurm.agent.status import SlurmStatus


def slurm_pages(status: SlurmStatus, helper: Callable[[], HelperState]) -> dict[str, Page]:
    """What the agent of a compute node of Slurm serves: metrics, history, probes."""
    metrics: list[Callable[[str], tuple[bytes, str]]] = []

    def metrics_page(request: PageRequest) -> Answer:
        if not metrics:
            from partage.slurm.agent.metrics import slurm_metrics_writer

            metrics.append(slurm_metrics_writer(status, helper))
        body, content_type = metrics[0](request.accept)
        return HTTPStatus.OK, content_type, body

    def stalled() -> list[ReadinessReason]:
        found = (("task-ended", status.ended_tasks()), ("loop-stalled", status.stopped()))
        return [ReadinessReason(code, why) for code, why in found if why]

    def health_page(_: PageRequest) -> Answer:
        trouble = status.trouble
        reasons = [*stalled(), *([ReadinessReason("helper-down", trouble)] if trouble else [])]
        return json_answer(health_document(Readiness(tuple(reasons), ())), probe_status(healthy=not reasons))

    def life_page(_: PageRequest) -> Answer:
        reasons = stalled()
        return json_answer(health_document(Readiness(tuple(reasons), ())), probe_status(healthy=not reasons))

    return {
        "/metrics": metrics_page,
        "/history.json": lambda _: history_answer(status.history),
        "/healthz": health_page,
        "/livez": life_page,
    }

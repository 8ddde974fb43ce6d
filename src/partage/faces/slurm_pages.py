"""The pages that the agent of a compute node of Slurm serves: metrics, history, probes."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from partage.agent.slurm.status import SlurmStatus
from partage.agent.status.readiness import Readiness, ReadinessReason
from partage.edges.hardware.supervisor import HelperState
from partage.faces.agent_pages import history_answer, probe_status
from partage.faces.http import Answer, Page, PageRequest, json_answer
from partage.faces.report import health_document


def slurm_pages(status: SlurmStatus, helper: Callable[[], HelperState]) -> dict[str, Page]:
    """What the agent of a compute node of Slurm serves: metrics, history, probes."""
    metrics: list[Callable[[str], tuple[bytes, str]]] = []

    def metrics_page(request: PageRequest) -> Answer:
        if not metrics:
            from partage.agent.slurm.metrics import slurm_metrics_writer

            metrics.append(slurm_metrics_writer(status, helper))
        body, content_type = metrics[0](request.accept)
        return HTTPStatus.OK, content_type, body

    def health_page(_: PageRequest) -> Answer:
        trouble = status.trouble
        readiness = Readiness((ReadinessReason("helper-down", trouble),) if trouble else (), ())
        return json_answer(health_document(readiness), probe_status(healthy=not trouble))

    def life_page(_: PageRequest) -> Answer:
        ended = status.ended_tasks()
        reasons = (ReadinessReason("task-ended", ended),) if ended else ()
        return json_answer(health_document(Readiness(reasons, ())), probe_status(healthy=not ended))

    return {
        "/metrics": metrics_page,
        "/history.json": lambda _: history_answer(status.history),
        "/healthz": health_page,
        "/livez": life_page,
    }

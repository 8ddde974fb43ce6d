"""What is wrong with a node, each problem once, by its agent's report.

The report has a sick GPU twice: in the row of the GPU, and as a reason why the node is degraded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage.text import gpus

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument, ReportedGpuRow

_OF_A_GPU = "gpu-unhealthy"
"""The code of reasons that the rows of GPUs say, too."""


def problems_of(report: ReportDocument) -> list[str]:
    """Everything, a sentence each: GPUs first, those with the same problem together."""
    alike: dict[str, list[int]] = {}
    for gpu in report.gpus:
        for trouble in troubles_of_gpu(gpu):
            alike.setdefault(trouble, []).append(gpu.index)
    return [*(f"{gpus(indexes)}: {trouble}" for trouble, indexes in alike.items()), *problems_of_node(report)]


def problems_of_node(report: ReportDocument) -> list[str]:
    """What is not said of one of its GPUs."""
    reasons = (*report.reasons, *report.degraded)
    return list(dict.fromkeys(reason.message for reason in reasons if reason.code != _OF_A_GPU))


def troubles_of_gpu(gpu: ReportedGpuRow) -> list[str]:
    """What is wrong with a GPU, and with GPU instances of it."""
    instances = [
        f"GPU instance {gi_id} {health.state}: {health.reason}"
        for gi_id, health in gpu.instances.items()
        if not health.state.offered
    ]
    return [*([gpu.trouble] if gpu.trouble else []), *instances]

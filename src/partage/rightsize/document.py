"""The answer of ``rightsize``: what each workload should have, and what the GPUs would hold then."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from partage.answers.documents.document import Document
from partage.rightsize.decide import (
    Confidence,
    Doubt,
    GpuSize,
    Recommendation,
    gpus_needed,
    units_needed,
)
from partage.values import Frozen


class WorkloadRow(Frozen):
    """One workload. name: ``namespace/workload/container``. sm_p95: part of the GPU's time. peak_at: RFC
    3339; null for a trace that counts from its own start. now_bytes: its shares now. The recommendation's
    keys are null where there is a doubt. time_slicing, mps: into how many shares a GPU can be split for it.
    units: of memory that a container asks for; null without --unit, and where no GPU has so many.
    """

    name: str
    runs: int
    samples: int
    hours: float
    coverage: float
    peak_bytes: int
    peak_at: str | None
    steadiness: float
    sm_p95: float | None
    now_bytes: int | None
    need_bytes: int | None
    headroom: float | None
    time_slicing: int | None
    mps: int | None
    mig: str | None
    mig_instances: int | None
    confidence: Confidence
    doubt: Doubt | None
    reason: str
    advice: str
    risks: tuple[str, ...]
    units: int | None


class FleetTotal(Frozen):
    """What the workloads take together, one share for each container of the most that ran at the same time.
    gpus_now: by their present
    shares; gpus_then: by the recommended ones, first fit, largest first; null: not known.
    """

    containers: int
    gpus_now: int | None
    gpus_then: int | None


class RightsizeDocument(Document, kw_only=True):
    """The answer of ``rightsize``. source: where the evidence comes from, a sentence. unattributed: part of
    the used GPU memory that belongs to no container. unit_bytes: --unit; null without it.
    """

    kind: Literal["Rightsize"] = "Rightsize"
    gpu: str
    gpu_memory_bytes: int
    source: str
    unattributed: float
    workloads: tuple[WorkloadRow, ...]
    fleet: FleetTotal
    unit_bytes: int | None


_MOST_CONTAINERS = 5000
_EARLIEST_S = 1_000_000_000
"""Times before 2001 are no dates: the trace counts from its own start."""


def rightsize_document(
    recommendations: Sequence[Recommendation],
    gpu: GpuSize,
    source: str,
    unattributed: float,
    unit_bytes: int | None = None,
) -> RightsizeDocument:
    """The answer."""
    return RightsizeDocument(
        gpu=gpu.product,
        gpu_memory_bytes=gpu.memory_bytes,
        source=source,
        unattributed=unattributed,
        workloads=tuple(_row(recommendation, gpu, unit_bytes) for recommendation in recommendations),
        fleet=_fleet(recommendations, gpu),
        unit_bytes=unit_bytes,
    )


def _row(recommendation: Recommendation, gpu: GpuSize, unit_bytes: int | None) -> WorkloadRow:
    seen, sure = recommendation.evidence, recommendation.doubt is None
    return WorkloadRow(
        name=seen.workload,
        runs=seen.runs,
        samples=seen.samples,
        hours=round(seen.span_s / 3600, 2),
        coverage=round(seen.coverage, 3),
        peak_bytes=seen.peak_bytes,
        peak_at=_moment(seen.peak_at_s),
        steadiness=round(1 - seen.steady, 3),
        sm_p95=seen.sm_p95,
        now_bytes=seen.share_bytes,
        need_bytes=recommendation.need_bytes or None,
        headroom=recommendation.headroom if sure else None,
        time_slicing=recommendation.time_slicing if sure else None,
        mps=recommendation.mps if sure else None,
        mig=recommendation.profile or None,
        mig_instances=recommendation.instances or None,
        confidence=recommendation.confidence,
        doubt=recommendation.doubt,
        reason=recommendation.reason,
        advice=recommendation.advice,
        risks=(*recommendation.risks, *_unit_risks(recommendation, unit_bytes)),
        units=None if unit_bytes is None else units_needed(recommendation, unit_bytes, gpu),
    )


def _unit_risks(recommendation: Recommendation, unit_bytes: int | None) -> Sequence[str]:
    if unit_bytes is None or recommendation.doubt is not None or not recommendation.by_compute:
        return ()
    busy = f"{recommendation.evidence.sm_p95:.0%}" if recommendation.evidence.sm_p95 is not None else "much"
    return (f"units share out memory only, and it keeps the GPU busy for {busy} of the time",)


def _moment(at_s: float) -> str | None:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at_s >= _EARLIEST_S else None


def _fleet(recommendations: Sequence[Recommendation], gpu: GpuSize) -> FleetTotal:
    """Workloads in doubt keep what they have."""
    containers = sum(recommendation.evidence.at_once for recommendation in recommendations)
    if containers > _MOST_CONTAINERS:
        return FleetTotal(containers, None, None)
    each = [
        recommendation
        for recommendation in recommendations
        for _ in range(recommendation.evidence.at_once * recommendation.evidence.devices)
    ]
    now = [recommendation.evidence.share_bytes for recommendation in each]
    then = [
        recommendation.need_bytes if recommendation.doubt is None else recommendation.evidence.share_bytes
        for recommendation in each
    ]
    return FleetTotal(containers, _gpus(now, gpu), _gpus(then, gpu))


def _gpus(sizes: Sequence[int | None], gpu: GpuSize) -> int | None:
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    whole = sum(size > gpu.memory_bytes // 2 for size in known)  # more than a half: a GPU of its own
    rest = gpus_needed([size for size in known if size <= gpu.memory_bytes // 2], gpu)
    return None if rest is None else whole + rest

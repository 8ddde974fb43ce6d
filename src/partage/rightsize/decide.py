"""From evidence to a share: how much memory, how many on a GPU, which MIG profile, how sure that is. Pure.

Memory is sized by the highest use ever seen, since too little ends a program; compute by the 95th percentile,
since too little only slows it down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import ceil

from partage.model.geometry import Geometry, ProfileSpec, instance_memory
from partage.model.policy import MemoryUnits
from partage.model.usage_day import BUSY_UP_TO, UsageDay, WorkloadDay
from partage.plan.history.evidence import BUSY_PART, Evidence
from partage.plan.offer.memory_units import count_units
from partage.text import count_of
from partage.units import GIB, MIB, format_bytes
from partage.values import Frozen


def gather_days(days: Iterable[UsageDay]) -> tuple[Evidence, ...]:
    """The evidence of each workload, by name. A node and date count once."""
    rows: dict[str, dict[str, list[WorkloadDay]]] = {}
    ordered = sorted({(day.node, day.date): day for day in days}.values(), key=lambda day: day.date)
    for day in ordered:
        for row in day.workloads:
            if row.samples:
                rows.setdefault(row.workload, {}).setdefault(day.node, []).append(row)
    return tuple(_evidence(name, list(rows[name].values())) for name in sorted(rows))


def unattributed_part(days: Iterable[UsageDay]) -> float:
    """Which part of the used memory belongs to no container and no job."""
    days = tuple(days)
    used = sum(day.used_bytes * day.samples for day in days)
    rest = sum(day.rest_bytes * day.samples for day in days)
    return min(1.0, rest / used) if used else 0.0


def _evidence(name: str, nodes: Sequence[Sequence[WorkloadDay]]) -> Evidence:
    """nodes: the days of each node, by date."""
    rows = [row for days in nodes for row in days]
    # The same peak on two days is of one run, which was shorter and less steady on the first; or of programs
    # that always take as much.
    highest = max(rows, key=lambda row: (row.peak_bytes, -row.spread))
    longest = max(rows, key=lambda row: row.longest_s)
    first, last = min(row.first_s for row in rows), max(row.last_s for row in rows)
    run_s = sum(row.run_s for row in rows)
    shares = [row.share_bytes for row in rows if row.share_bytes is not None]
    devices = max(1, *(row.devices for row in rows))
    # A run that goes on over midnight is on both days.
    runs = sum(days[0].runs + sum(row.started for row in days[1:]) for days in nodes)
    return Evidence(
        workload=name,
        runs=-(-runs // devices),
        samples=sum(row.samples for row in rows),
        span_s=float(last - first),
        coverage=min(1.0, sum(row.seen_s for row in rows) / run_s) if run_s else 1.0,
        peak_bytes=highest.peak_bytes,
        peak_at_s=float(highest.peak_at_s),
        steady=highest.spread,
        exact=all(row.exact for row in rows),
        growing=longest.growing,
        full=max(row.full for row in rows),
        sm_p95=_busy(rows),
        share_bytes=max(shares, default=None),
        processes=max(row.processes for row in rows) or 1,
        coarse=True,
        at_once=-(-sum(max(row.at_once for row in days) for days in nodes) // devices),
        devices=devices,
    )


def _busy(rows: Sequence[WorkloadDay]) -> float | None:
    """The activity that 95 % of the samples do not exceed, rounded up to the end of its class."""
    counts = [sum(row.busy[at] for row in rows if at < len(row.busy)) for at in range(len(BUSY_UP_TO))]
    rank, seen = ceil(BUSY_PART * sum(counts)), 0
    for up_to, count in zip(BUSY_UP_TO, counts, strict=True):
        seen += count
        if rank and seen >= rank:
            return up_to
    return None


FEWEST_SAMPLES = 10
DAY_S = 86_400.0
_STEP = 256 * MIB
"""Needs are rounded up to this."""
_FLAT, _FULL = 0.02, 0.7
"""Use that moves by less than _FLAT, above _FULL of what is visible, looks like memory taken in advance."""
_GRABS = (0.5, 0.75, 0.9, 0.92)
"""What a pool of RAPIDS (RMM), JAX and TensorFlow, and vLLM before and from 0.33, take at their start."""
_NEAR = 0.015
_MOST_UNATTRIBUTED = 0.2
_USABLE = 0.97
"""The part of a MIG device's memory that a program can have."""
MOST_MPS, MOST_TIME_SLICING = 48, 10
_SLACK = {"mps": 512 * MIB, "time-slicing": 256 * MIB}


class Confidence(StrEnum):
    """How much the evidence is worth."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Doubt(StrEnum):
    """Why nothing is recommended.

    preallocates: it seems to take memory in advance, so that its use says nothing of its need.
    too-few-samples. unattributed: too much memory of the GPUs belongs to no container that is known.
    too-big: it needs more than the GPU has. unused: it had no GPU memory at all. several-devices: one
    container uses several GPUs or MIG devices at a time.
    """

    PREALLOCATES = "preallocates"
    UNUSED = "unused"
    TOO_FEW_SAMPLES = "too-few-samples"
    UNATTRIBUTED = "unattributed"
    TOO_BIG = "too-big"
    SEVERAL_DEVICES = "several-devices"


class GpuSize(Frozen):
    """The GPU for which is sized. reserved_bytes: what the driver keeps. geometry: None: it has no MIG."""

    product: str
    memory_bytes: int
    reserved_bytes: int = 0
    geometry: Geometry | None = None


class Recommendation(Frozen):
    """What one workload should have.

    doubt, advice: why nothing is recommended, and what to do then. need_bytes: its memory with headroom.
    time_slicing, mps: into how many shares a GPU can be split for it; 0 or 1: it needs a GPU of its own.
    profile, instances: the smallest MIG profile, and how many of them one GPU has. by_compute: activity, not
    memory, limits the number. risks: sentences.
    """

    evidence: Evidence
    confidence: Confidence
    headroom: float = 0.0
    need_bytes: int = 0
    time_slicing: int = 0
    mps: int = 0
    profile: str = ""
    instances: int = 0
    by_compute: bool = False
    doubt: Doubt | None = None
    reason: str = ""
    advice: str = ""
    risks: tuple[str, ...] = ()


def recommend(evidence: Evidence, gpu: GpuSize, unattributed: float = 0.0) -> Recommendation:
    """The recommendation, or why there is none. unattributed: part of the GPUs' used memory that belongs to
    no container.
    """
    refused = _refusal(evidence, unattributed)
    if refused is not None:
        doubt, reason, advice = refused
        return Recommendation(evidence, Confidence.LOW, doubt=doubt, reason=reason, advice=advice)
    headroom = _headroom(evidence)
    need = -(-int(evidence.peak_bytes * (1 + headroom)) // _STEP) * _STEP
    found = {how: _replicas(need, gpu, _SLACK[how]) for how in _SLACK}
    at_most = MOST_MPS if evidence.sm_p95 is None else max(1, int(0.9 / max(evidence.sm_p95, 0.01)))
    spec, instances = _profile(need, evidence.sm_p95, gpu)
    mps = min(found["mps"], at_most, MOST_MPS)
    if max(found.values()) < 1 and spec is None:
        has = format_bytes(gpu.memory_bytes)
        reason = f"it needs {format_bytes(need)} with headroom, and the GPU ({gpu.product}) has {has}"
        return Recommendation(
            evidence, Confidence.LOW, headroom, need, doubt=Doubt.TOO_BIG, reason=reason,
            advice="size it for a larger GPU (--gpu), or let it use several",
        )  # fmt: skip
    return Recommendation(
        evidence=evidence,
        confidence=_confidence(evidence, unattributed),
        headroom=headroom,
        need_bytes=need,
        time_slicing=min(found["time-slicing"], at_most, MOST_TIME_SLICING),
        mps=mps,
        profile=str(spec.profile) if spec else "",
        instances=instances,
        by_compute=at_most < min(found["mps"], MOST_MPS),
        risks=tuple(_risks(evidence, unattributed)),
    )


def _refusal(evidence: Evidence, unattributed: float) -> tuple[Doubt, str, str] | None:
    if evidence.samples < FEWEST_SAMPLES:
        return (
            Doubt.TOO_FEW_SAMPLES,
            f"it has only {count_of(evidence.samples, 'sample')}",
            f"observe it longer: {FEWEST_SAMPLES} samples at least, better a day or three runs; or ask "
            "Prometheus for a shorter --window, in which it has more of them",
        )
    if evidence.peak_bytes == 0:
        return (
            Doubt.UNUSED,
            "it held a share and used no GPU memory",
            "ask whether it needs a GPU; or observe it while it works",
        )
    if evidence.devices > 1:
        return (
            Doubt.SEVERAL_DEVICES,
            f"one container uses {evidence.devices} GPUs or MIG devices at a time, and a share is a part "
            "of one",
            f"leave it whole GPUs; on each it used {format_bytes(evidence.peak_bytes)} at most",
        )
    if unattributed > _MOST_UNATTRIBUTED:
        return (
            Doubt.UNATTRIBUTED,
            f"{unattributed:.0%} of the used GPU memory belongs to no container that is known",
            "let the exporter see all processes (host's process ids), or measure it alone on a GPU",
        )
    if preallocates(evidence):
        return (
            Doubt.PREALLOCATES,
            f"its memory stays at {evidence.full:.0%} of what it sees, as programs do that take it in "
            "advance",
            "read its own figure (vLLM: vllm:kv_cache_usage_perc; JAX: device.memory_stats()), or "
            "run it once without: XLA_PYTHON_CLIENT_PREALLOCATE=false, TF_FORCE_GPU_ALLOW_GROWTH=true, a "
            "lower --gpu-memory-utilization, no pool of RMM",
        )
    return None


def preallocates(evidence: Evidence) -> bool:
    """Whether its memory looks as if it was taken in advance."""
    near = any(abs(evidence.full - part) <= _NEAR for part in _GRABS)
    return evidence.steady < _FLAT and (evidence.full >= _FULL or near)


def _headroom(evidence: Evidence) -> float:
    """More where less is known."""
    if evidence.growing or (evidence.runs < 3 and evidence.span_s < DAY_S):
        return 0.3
    return 0.1 if evidence.runs >= 20 and evidence.exact else 0.2


def _replicas(need: int, gpu: GpuSize, slack: int) -> int:
    """Into how many equal shares a GPU can be split."""
    return (gpu.memory_bytes - gpu.reserved_bytes - slack) // need if need else 0


def _profile(need: int, sm: float | None, gpu: GpuSize) -> tuple[ProfileSpec | None, int]:
    """The smallest profile with enough memory, and enough compute where its use is known."""
    geometry = gpu.geometry
    if geometry is None:
        return None, 0
    fitting = [
        spec
        for spec in geometry.profiles
        if not spec.profile.attributes
        and instance_memory(spec, geometry, gpu.memory_bytes) * _USABLE >= need
        and spec.compute_slices / geometry.compute_slices >= (sm or 0.0) * 1.1
    ]
    if not fitting:
        return None, 0
    best = min(fitting, key=lambda spec: (spec.size, spec.compute_slices))
    return best, best.max_count


def _confidence(evidence: Evidence, unattributed: float) -> Confidence:
    if evidence.growing or evidence.coverage < 0.5 or (evidence.runs < 3 and evidence.span_s < DAY_S):
        return Confidence.LOW
    good = evidence.exact and evidence.coverage >= 0.9 and unattributed < 0.05 and not evidence.coarse
    return (
        Confidence.HIGH
        if good and (evidence.runs >= 3 or evidence.span_s >= 7 * DAY_S)
        else Confidence.MEDIUM
    )


def _risks(evidence: Evidence, unattributed: float) -> Sequence[str]:
    risks = []
    if evidence.growing:
        risks.append("its memory still grows: the peak may not be the last one")
    if not evidence.exact:
        risks.append("peaks between two samples may be missing: the exporter's own peaks are not there")
    if evidence.coarse:
        risks.append("only its peaks and a coarse course were kept, not its samples: sure is medium at most")
    if evidence.coverage < 0.9:
        risks.append(f"samples cover {evidence.coverage:.0%} of its time")
    if evidence.runs < 3 and evidence.span_s < DAY_S:
        risks.append(f"only {count_of(evidence.runs, 'run')} and {evidence.span_s / 3600:.1f} h were seen")
    if evidence.sm_p95 is None:
        risks.append("how busy it keeps the GPU is not known: shares are sized by memory alone")
    if evidence.processes > 1:
        risks.append(f"{evidence.processes} processes: each has a context of its own, which is in the peak")
    if unattributed >= 0.05:
        risks.append(f"{unattributed:.0%} of the used GPU memory belongs to no container that is known")
    return risks


def units_needed(recommendation: Recommendation, unit_bytes: int, gpu: GpuSize) -> int | None:
    """How many units of memory a container of this workload asks for. None: nothing is recommended, or no
    GPU has so many.
    """
    if recommendation.doubt is not None:
        return None
    number = -(-recommendation.need_bytes // unit_bytes)
    return number if number <= count_units(MemoryUnits(unit_bytes), gpu.memory_bytes) else None


def gpus_needed(needs: Sequence[int], gpu: GpuSize) -> int | None:
    """How many GPUs hold shares of these sizes together, first fit, largest first. None: one is too big."""
    room = gpu.memory_bytes - gpu.reserved_bytes - _SLACK["mps"]
    free: list[int] = []
    for need in sorted(needs, reverse=True):
        if need > room:
            return None
        place = next((n for n, left in enumerate(free) if left >= need), None)
        if place is None:
            free.append(room - need)
        else:
            free[place] -= need
    return len(free)


def whole_gib(amount_bytes: int) -> str:
    """An amount as a policy writes it: ``6Gi``, or ``6400Mi``."""
    return f"{amount_bytes // GIB}Gi" if amount_bytes % GIB == 0 else f"{-(-amount_bytes // MIB)}Mi"

"""The plan of a node while it is not settled: which GPUs change, and what they wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from partage.codec.values import CodecError, decode, encode_replacing
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import GpuReport, Report
from partage.plan.serve.ledger_entry import NAMED, Certainty, Holder, LedgerEntry
from partage.text import count_of, listed
from partage.values import Frozen

PLAN = "partage.dev/plan"
"""The annotation of a Node that has it."""

SHOWN = 8
"""Pods that one GPU lists: an annotation is read by people."""

_UNDER_WAY = frozenset(Phase) - {Phase.SETTLED, Phase.UNKNOWN}


class PendingGpu(Frozen, omit_defaults=True):
    """One GPU that is not as the policy wants it. pods: ``namespace/pod``, that it waits for; more: so many
    others. since: when it began to wait, RFC 3339.
    """

    index: int
    phase: Phase
    reason: str
    pods: tuple[str, ...] = ()
    more: int = 0
    since: str = ""


class PendingPlan(Frozen):
    """The annotation's value, as JSON."""

    gpus: tuple[PendingGpu, ...]


def unsettled(report: Report) -> Iterator[tuple[GpuReport, GpuPlan]]:
    """GPUs that are not as the policy wants them, as far as that is known."""
    for gpu in report.gpus:
        if gpu.plan is not None and gpu.plan.phase in _UNDER_WAY:
            yield gpu, gpu.plan


def pending_gpus(report: Report) -> tuple[PendingGpu, ...]:
    """What is pending, without ``since``."""
    return tuple(_row(gpu, plan) for gpu, plan in unsettled(report))


def _row(gpu: GpuReport, plan: GpuPlan) -> PendingGpu:
    pods = pods_of(plan.waiting_for)
    return PendingGpu(gpu.index, plan.phase, plan.reason, pods[:SHOWN], max(0, len(pods) - SHOWN))


def plan_annotation(pending: tuple[PendingGpu, ...], before: str, now: str) -> str:
    """The annotation's value; empty where nothing is pending. before: its value until now, from which GPUs
    keep the time since when they wait; now: RFC 3339, for the others.
    """
    try:
        read = (
            decode(PendingPlan, before.encode(errors="replace"), strict=False) if before else PendingPlan(())
        )
    except CodecError:  # someone else has written it
        read = PendingPlan(())
    began = {gpu.index: gpu.since for gpu in read.gpus}
    rows = tuple(replace(gpu, since=began.get(gpu.index) or now) for gpu in pending)
    return encode_replacing(PendingPlan(rows)).decode() if rows else ""


def pods_of(entries: Iterable[LedgerEntry]) -> tuple[str, ...]:
    """``namespace/pod`` of all pods that may hold these shares; not of those of which a process is left."""
    held = (entry for entry in entries if not entry.left)
    return tuple(sorted({f"{namespace}/{pod}" for entry in held for namespace, pod in entry.pods}))


def certain_holder(entry: LedgerEntry) -> Holder | None:
    """The container that holds it, where the kubelet names that one, and no other, now."""
    named = entry.certainty in (*NAMED, Certainty.CLAIMED)
    return entry.holder if named else None


def awaited(plan: GpuPlan) -> str:
    """What a GPU waits for, for people: ``pods a/train, a/serve``, ``2 shares whose pods are not known``."""
    pods = pods_of(plan.waiting_for)
    nameless = sum(not entry.pods for entry in plan.waiting_for)
    parts = [f"{'pod' if len(pods) == 1 else 'pods'} {listed(pods, SHOWN)}"] if pods else []
    if nameless:
        parts.append(f"{count_of(nameless, 'share')} whose pods are not known")
    return " and ".join([*parts, *plan.processes[:SHOWN]])

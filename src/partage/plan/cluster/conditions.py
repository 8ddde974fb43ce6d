"""What a Node says of itself: its conditions, few, of stable types and reasons, with messages for people; and
while it is not settled its plan: which GPUs change, and what they wait for. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from partage.codec.values import CodecError, decode, encode_replacing
from partage.model.gpu import NoDriver
from partage.model.node_labels import NodeCondition, NodeTaint, Truth
from partage.plan.reconcile.known_node import UNSEEN
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import GpuReport, PolicyReason, Report
from partage.plan.serve.cordon import cordon_sentence
from partage.plan.serve.ledger_entry import NAMED, Certainty, Holder, LedgerEntry
from partage.text import count_of, gpus, listed, shortened
from partage.values import Frozen, grouped

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


READY, GPUS_HEALTHY, POLICY_IN_FORCE = "PartageReady", "PartageGpusHealthy", "PartagePolicyInForce"

CLAIMS_SAID = "; ResourceClaims: "
"""What stands in the message of PartageReady before the reason why claims get nothing, or not all."""

LONGEST_MESSAGE = 1024


def node_conditions(report: Report) -> tuple[NodeCondition, ...]:
    """What is true of the node now. What is not known yet is left out, and stays as it was."""
    if report.dependencies.hardware:
        return (_said(READY, "HardwareNotAnswering", report.dependencies.hardware),)
    if report.node is UNSEEN:
        return ()
    driver = report.node.inventory.driver
    if isinstance(driver, NoDriver):
        hint = f"; {driver.hint}" if driver.hint else ""
        return (_said(READY, "NoDriver", f"{driver.reason}{hint}"),)
    return (_ready(report), _healthy(report), _in_force(report))


def _said(kind: str, reason: str, message: str, *, status: bool = False) -> NodeCondition:
    truth: Truth = "True" if status else "False"
    return NodeCondition(kind, truth, reason, shortened(message, LONGEST_MESSAGE))


def _ready(report: Report) -> NodeCondition:
    if report.dependencies.kubelet:
        return _said(READY, "NotRegistered", report.dependencies.kubelet)
    names = [str(resource.name) for resource in report.resources if resource.listed]
    offered = f" as {listed(names, SHOWN)}" if names else ""
    cordon = cordon_sentence(gpu.index for gpu in report.gpus if gpu.cordoned)
    more = f"; {cordon}" if cordon else ""
    if report.dependencies.claims:
        more += f"{CLAIMS_SAID}{report.dependencies.claims}"
    return _said(READY, "Ready", f"{count_of(len(report.gpus), 'GPU')}{offered}{more}", status=True)


def _healthy(report: Report) -> NodeCondition:
    found = grouped((what, gpu.index) for gpu in report.gpus for what in faults_of(gpu))
    if not found:
        return _said(GPUS_HEALTHY, "AllHealthy", "no GPU has a fault", status=True)
    faults = [f"{gpus(indexes)}: {what}" for what, indexes in found.items()]
    return _said(GPUS_HEALTHY, "GpusUnhealthy", "; ".join(faults))


def faults_of(gpu: GpuReport) -> tuple[str, ...]:
    """Why shares of it are not offered for its health, one sentence for the GPU or each GPU instance."""
    if not gpu.health.state.offered:
        return (gpu.health.reason or gpu.lost or str(gpu.health.state),)
    return tuple(
        f"GPU instance {gi_id}: {status.reason or status.state}"
        for gi_id, status in sorted(gpu.instances.items())
        if not status.state.offered
    )


def _in_force(report: Report) -> NodeCondition:
    policy = report.policy
    if policy.reason is not PolicyReason.IN_FORCE:
        return _said(POLICY_IN_FORCE, policy.reason.camel, policy.message)
    pending = tuple(unsettled(report))
    if not pending:
        return _said(POLICY_IN_FORCE, "InForce", policy.message, status=True)
    reason = max((_reason(plan) for _, plan in pending), key=_REASONS.index)
    texts = [f"GPU {gpu.index} {standing(plan)}" for gpu, plan in pending]
    return _said(POLICY_IN_FORCE, reason, listed(texts, SHOWN))


_REASONS = ("ChangeUnderWay", "ChangeWaits", "ChangeImpossible", "ChangeFailed")
"""From what ends by itself to what needs a person."""


def _reason(plan: GpuPlan) -> str:
    match plan.phase:
        case Phase.FAILED:
            return "ChangeFailed"
        case Phase.BLOCKED:
            return "ChangeImpossible"
        case Phase.WAITING:
            return "ChangeWaits"
        case _:
            return "ChangeUnderWay"


def standing(plan: GpuPlan) -> str:
    """How a GPU that is not settled stands, words that follow its name."""
    match plan.phase:
        case Phase.WAITING:
            what = awaited(plan)
            return f"waits for {what}" if what and not plan.conflict else f"waits: {plan.reason}"
        case Phase.FAILED:
            return f"could not be changed: {plan.reason}"
        case Phase.BLOCKED:
            return f"cannot be changed: {plan.reason}"
        case _:
            return "is being changed"


_HOLDS_WITHOUT = {NodeTaint.NOT_READY: READY, NodeTaint.GPU_UNHEALTHY: GPUS_HEALTHY}


def node_taints(report: Report, asked: Collection[NodeTaint]) -> Mapping[NodeTaint, bool]:
    """Which taints the Node has, and which it has not. What is not known is left out, and stays as it is.

    asked: all others are taken away. While another device plugin serves the GPUs, Partage sets none.
    """
    if report.snapshot is not None and report.snapshot.other_plugin:
        return dict.fromkeys(NodeTaint, False)
    status = {condition.type: condition.status for condition in node_conditions(report)}
    found = {taint: status[kind] == "False" for taint, kind in _HOLDS_WITHOUT.items() if kind in status}
    return {
        taint: taint in asked and found[taint] for taint in NodeTaint if taint in found or taint not in asked
    }

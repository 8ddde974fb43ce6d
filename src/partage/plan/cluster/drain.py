"""Which pods are asked to leave so that a GPU can change (``change: drain``), and for how long. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from partage.model.ids import GpuUuid
from partage.model.policy import Policy
from partage.plan.cluster.events import PodName
from partage.plan.cluster.pending import awaited, certain_holder
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import Report
from partage.units import format_duration
from partage.values import Frozen


class DrainState(Frozen):
    """began_s: GPUs that are being drained, and since when. gave_up: those whose pods have not left in time,
    and a sentence. due_s: when the next deadline is. policy: under which that began.
    """

    began_s: Mapping[GpuUuid, float] = field(default_factory=dict)
    gave_up: Mapping[GpuUuid, str] = field(default_factory=dict)
    due_s: float | None = None
    policy: Policy | None = None


def next_drain(before: DrainState, report: Report, now_s: float) -> DrainState:
    """What is drained now. What was given up stays so until its last pod has left, or until the policy is
    another one.
    """
    if report.policy_in_force != before.policy:
        before = DrainState(policy=report.policy_in_force)
    began_s, gave_up, due_s = dict[GpuUuid, float](), dict[GpuUuid, str](), list[float]()
    for gpu in report.gpus:
        if gpu.drain_s is None:
            continue
        if gpu.uuid in before.gave_up and gpu.held:
            gave_up[gpu.uuid] = before.gave_up[gpu.uuid]
        elif (plan := gpu.plan) is not None and _is_to_drain(plan):
            since_s = before.began_s.get(gpu.uuid, now_s)
            if now_s >= since_s + gpu.drain_s:
                gave_up[gpu.uuid] = _sentence(plan, gpu.drain_s)
            else:
                began_s[gpu.uuid] = since_s
                due_s.append(since_s + gpu.drain_s)
    return DrainState(began_s, gave_up, min(due_s, default=None), before.policy)


def _is_to_drain(plan: GpuPlan) -> bool:
    """Where holds contradict each other, nobody is asked to leave: some of them may not be true."""
    return plan.phase is Phase.WAITING and bool(plan.waiting_for) and not plan.conflict


def _sentence(plan: GpuPlan, drain_s: int) -> str:
    return (
        f"after a drain of {format_duration(drain_s)} it still waited for {awaited(plan)}; it offers what it "
        "did before, until nothing of it is held or the policy is changed"
    )


def pods_to_evict(state: DrainState, report: Report) -> frozenset[PodName]:
    """The pods that hold what has to be released. Only those that the kubelet names now, each alone for its
    share; nobody while the kubelet cannot be asked.
    """
    if report.dependencies.pod_resources:
        return frozenset()
    draining = (gpu.plan for gpu in report.gpus if gpu.uuid in state.began_s)
    entries = (entry for plan in draining if plan is not None for entry in plan.waiting_for)
    holders = (certain_holder(entry) for entry in entries)
    return frozenset(PodName(one.namespace, one.pod) for one in holders if one is not None)

"""Which pods are asked to leave so that a GPU can change (``change: drain``), and for how long. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec import field
from msgspec.structs import replace

from partage.kubernetes.decide.events import PodName
from partage.model.ids import GpuUuid
from partage.model.policy import Drain, Policy, SparedPods
from partage.plan.cluster.conditions import SHOWN, awaited, certain_holder
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import GpuReport, Report
from partage.text import listed
from partage.units import format_duration
from partage.values import Frozen


class NotEvicted(StrEnum):
    """Why a pod is not asked to leave, words that follow its name.

    in_vain: its share would be taken again, as the one of the pod that was evicted before it.
    """

    STATIC = "is static: its eviction would end nothing"
    SYSTEM_CRITICAL = "is system-critical"
    BARE = "has no controller that would make it again"
    IN_VAIN = "has taken the share of a pod of the same controller that was evicted for this GPU"


class RunningPod(Frozen):
    """What decides whether a pod is asked to leave. controller: UID of its controller; empty: it has none.

    static: a file on the node makes it. critical: of the priority of the system's own pods.
    """

    uid: str
    controller: str = ""
    static: bool = False
    critical: bool = False


class AskedPods(Frozen):
    """The pods of one controller were asked to leave for one GPU. pods: UIDs of those that held a share of it
    then. held: for how many shares the GPU waited then.
    """

    pods: frozenset[str]
    held: int


class DrainState(Frozen):
    """began_s: since when GPUs are drained; kept until a GPU is as the policy wants it, also while nothing of
    it is held for a moment. gave_up: those whose pods have not left in time, and a sentence. due_s: when the
    next deadline is. policy: under which that began. asked: by GPU and UID of the controller.
    """

    began_s: Mapping[GpuUuid, float] = field(default_factory=dict)
    gave_up: Mapping[GpuUuid, str] = field(default_factory=dict)
    due_s: float | None = None
    policy: Policy | None = None
    asked: Mapping[GpuUuid, Mapping[str, AskedPods]] = field(default_factory=dict)


def next_drain(
    before: DrainState, report: Report, now_s: float, pods: Mapping[PodName, RunningPod]
) -> DrainState:
    """What is drained now. What was given up stays so until its last pod has left, or until the policy is
    another one. pods: those of the node as the cluster had them last, by their names.
    """
    if report.policy_in_force != before.policy:
        before = DrainState(policy=report.policy_in_force)
    began_s, gave_up, due_s = dict[GpuUuid, float](), dict[GpuUuid, str](), list[float]()
    for gpu in report.gpus:
        if gpu.drain is None or gpu.plan is None or gpu.plan.phase is Phase.SETTLED:
            continue
        waits, since_s = _is_to_drain(gpu), before.began_s.get(gpu.uuid)
        if waits or since_s is not None:
            since_s = began_s[gpu.uuid] = now_s if since_s is None else since_s
        if gpu.uuid in before.gave_up and gpu.held:
            gave_up[gpu.uuid] = before.gave_up[gpu.uuid]
        elif waits and since_s is not None:
            if now_s >= since_s + gpu.drain.deadline_s:
                gave_up[gpu.uuid] = _sentence(before, gpu, gpu.plan, gpu.drain, pods)
            else:
                due_s.append(since_s + gpu.drain.deadline_s)
    asked = {gpu: before.asked[gpu] for gpu in began_s if gpu in before.asked}
    return DrainState(began_s, gave_up, min(due_s, default=None), before.policy, asked)


def _is_to_drain(gpu: GpuReport) -> bool:
    """Nobody is asked to leave if holds contradict each other: some of them may not be true."""
    plan = gpu.plan
    return (
        gpu.drain is not None
        and plan is not None
        and plan.phase is Phase.WAITING
        and bool(plan.waiting_for)
        and not plan.conflict
    )


def _sentence(
    state: DrainState, gpu: GpuReport, plan: GpuPlan, drain: Drain, pods: Mapping[PodName, RunningPod]
) -> str:
    spared = spared_sentence(_judged(state, gpu, pods))
    return (
        f"after a drain of {format_duration(drain.deadline_s)} it still waited for {awaited(plan)}"
        f"{f' ({spared})' if spared else ''}; it offers its free shares once more, "
        "and changes when every holder has ended"
    )


# --- who is asked --------------------------------------------------------------------------------


def drained(state: DrainState, report: Report) -> Iterator[GpuReport]:
    """The GPUs whose pods are asked to leave now; none while the kubelet cannot say who they are."""
    if not report.dependencies.pod_resources:
        for gpu in report.gpus:
            if gpu.uuid in state.began_s and gpu.uuid not in state.gave_up and _is_to_drain(gpu):
                yield gpu


def holders(gpu: GpuReport) -> frozenset[PodName]:
    """The pods that hold what has to be released: those that the kubelet names now, each alone for its
    share.
    """
    found = (certain_holder(entry) for entry in (gpu.plan.waiting_for if gpu.plan else ()))
    return frozenset(PodName(holder.namespace, holder.pod) for holder in found if holder is not None)


def pods_to_evict(
    state: DrainState, report: Report, pods: Mapping[PodName, RunningPod]
) -> frozenset[PodName]:
    """Who may be asked to leave at this moment."""
    return frozenset(
        name
        for gpu in drained(state, report)
        for name, why_not in _judged(state, gpu, pods).items()
        if why_not is None
    )


def spared_pods(
    state: DrainState, report: Report, pods: Mapping[PodName, RunningPod]
) -> dict[GpuUuid, dict[PodName, NotEvicted]]:
    """Who holds what has to be released and is not asked to leave, and why."""
    found = {gpu.uuid: _judged(state, gpu, pods) for gpu in drained(state, report)}
    return {
        gpu: {name: why_not for name, why_not in judged.items() if why_not is not None}
        for gpu, judged in found.items()
        if any(judged.values())
    }


def spared_sentence(judged: Mapping[PodName, NotEvicted | None]) -> str:
    """``not evicted: pod a/train is system-critical``; empty where everybody is."""
    named = [
        f"pod {pod.namespace}/{pod.name} {why_not}"
        for pod, why_not in sorted(judged.items())
        if why_not is not None
    ]
    return f"not evicted: {listed(named, SHOWN)}" if named else ""


def _judged(
    state: DrainState, gpu: GpuReport, pods: Mapping[PodName, RunningPod]
) -> dict[PodName, NotEvicted | None]:
    return {name: _why_not(state, gpu, pods[name]) for name in sorted(holders(gpu) & pods.keys())}


def _why_not(state: DrainState, gpu: GpuReport, pod: RunningPod) -> NotEvicted | None:
    """A pod that came when others of its controller had been asked is asked in turn only if the GPU waits for
    fewer shares since: else they would come again for ever.
    """
    also = gpu.drain.also if gpu.drain is not None else ()
    if pod.static:
        return NotEvicted.STATIC
    if pod.critical and SparedPods.SYSTEM_CRITICAL not in also:
        return NotEvicted.SYSTEM_CRITICAL
    if not pod.controller and SparedPods.BARE not in also:
        return NotEvicted.BARE
    asked = state.asked.get(gpu.uuid, {}).get(pod.controller)
    if asked is None or pod.uid in asked.pods or _shares(gpu) < asked.held:
        return None
    return NotEvicted.IN_VAIN


def _shares(gpu: GpuReport) -> int:
    return len(gpu.plan.waiting_for) if gpu.plan else 0


def after_asking(
    state: DrainState, report: Report, pods: Mapping[PodName, RunningPod], name: PodName
) -> DrainState:
    """The state when this pod has been asked to leave. report: by which that was decided."""
    asked, controller = dict(state.asked), pods[name].controller
    for gpu in drained(state, report):
        there = holders(gpu) & pods.keys()
        before = asked.get(gpu.uuid, {})
        known = before.get(controller)
        if name in there and (known is None or pods[name].uid not in known.pods):
            alike = frozenset(pods[other].uid for other in there if pods[other].controller == controller)
            asked[gpu.uuid] = {**before, controller: AskedPods(alike, _shares(gpu))}
    return replace(state, asked=asked)

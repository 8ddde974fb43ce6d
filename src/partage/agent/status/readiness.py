"""The answer to a readiness probe, with reasons. Computed at each request, so it works while the loop hangs.

``unhealthy``: the node's GPUs are not offered now, or a fault would not be noticed: 503. ``degraded``: for
people; the node works, and a restart would not help: 200.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from partage.agent.options import Intervals
from partage.agent.status.status import AgentStatus
from partage.edges.kubelet.port import EndpointState
from partage.model.gpu import NoDriver
from partage.model.ids import ResourceName
from partage.model.mps import DaemonPhase
from partage.plan.reconcile.draft import without_files
from partage.plan.reconcile.known_node import UNSEEN
from partage.plan.report import (
    DependencyProblems,
    MigConfigState,
    PolicyReason,
    PolicyState,
    Report,
    ResourceReport,
)
from partage.text import gpus, listed
from partage.values import Frozen

_OTHER_PLUGIN = "other-plugin"
PIPE_READ_ONLY = "mps-pipe-read-only"
_SHOWN = 4

_POLICY_CODES = {
    PolicyReason.UNKNOWN_NAME: "policy-unknown",
    PolicyReason.NONE_CHOSEN: "policy-unknown",
    PolicyReason.LABELS_UNKNOWN: "labels-unknown",
    PolicyReason.ROLLOUT_WAITS: "rollout-waits",
    PolicyReason.ROLLOUT_PAUSED: "rollout-paused",
    PolicyReason.ROLLOUT_STOPPED: "rollout-stopped",
}


class ReadinessReason(Frozen):
    """One reason. code: stable, for programs. message: a sentence."""

    code: str
    message: str


class Readiness(Frozen):
    """All reasons. unhealthy, degraded: see the module."""

    unhealthy: tuple[ReadinessReason, ...]
    degraded: tuple[ReadinessReason, ...]


def stall_reason(status: AgentStatus, intervals: Intervals) -> ReadinessReason | None:
    """The reason where a restart of the agent helps: the loop's pulse is too old, or a task cannot be kept
    running."""
    if ended := status.ended_tasks():
        return ReadinessReason("task-ended", ended)
    age_s = status.clock() - status.pulse_s
    old = f"the agent's loop has not moved for {age_s:.0f} s" if age_s > intervals.stalled_s else ""
    stopped = old or status.stopped()
    return ReadinessReason("loop-stalled", stopped) if stopped else None


def readiness_of(status: AgentStatus, intervals: Intervals) -> Readiness:
    """Everything that is wrong now."""
    report = status.report
    unhealthy = [] if (reason := stall_reason(status, intervals)) is None else [reason]
    if report is None:
        unhealthy.append(ReadinessReason("starting", "the agent has not looked at the node yet"))
        return Readiness(tuple(unhealthy), ())
    hardware = list(_hardware(status, report))
    unhealthy += [*hardware, *_not_served(status, report, intervals)]
    if report.policy.state is PolicyState.NONE and report.policy.problems and not hardware:
        unhealthy.append(ReadinessReason("no-policy", report.policy.message))
    degraded = [*_degraded(report), *_unwatched(status), *_kept(status), *_unconnected(status, report)]
    if not any(finding.code == _OTHER_PLUGIN for finding in unhealthy):
        degraded += _held_back(report)
    return Readiness(tuple(unhealthy), tuple(degraded))


def _hardware(status: AgentStatus, report: Report) -> Iterator[ReadinessReason]:
    # A helper that has just died is known at once; one that hangs, when a question had no answer.
    if trouble := status.helper_trouble() or report.dependencies.hardware:
        yield ReadinessReason("helper-down", trouble)
    elif report.node is UNSEEN:
        yield ReadinessReason("helper-down", "the hardware has not answered yet")
    elif isinstance(driver := report.node.inventory.driver, NoDriver):
        yield ReadinessReason(
            driver.kind, f"{driver.reason}; {driver.hint}" if driver.hint else driver.reason
        )


def kubelet_trouble(status: AgentStatus, resources: Iterable[ResourceReport], intervals: Intervals) -> str:
    """Which resources the kubelet has not accepted, or reads no list of, for longer than it takes to start
    again; a sentence that stays the same meanwhile. Empty if all are well.
    """
    now_s = status.clock()
    since_s = {state.resource: state.since for state in status.endpoints()}
    waits = [
        resource for resource in resources if now_s - since_s.get(resource.name, now_s) > intervals.silent_s
    ]
    unread = [
        f"the kubelet accepted {name} and reads no list of its devices"
        for name, unwatched_s in _without_stream(status, waits)
        if unwatched_s > intervals.silent_s
    ]
    return "; ".join([*(reason.message for reason in _not_registered(status, waits, intervals)), *unread])


def _not_served(status: AgentStatus, report: Report, intervals: Intervals) -> Iterator[ReadinessReason]:
    yield from _not_registered(status, report.resources, intervals)
    for name, unwatched_s in _without_stream(status, report.resources):
        if unwatched_s > intervals.unwatched_s:
            message = f"the kubelet accepted {name} and has read no device list for {unwatched_s:.0f} s"
            yield ReadinessReason("not-watched", message)


def _not_registered(
    status: AgentStatus, resources: Iterable[ResourceReport], intervals: Intervals
) -> Iterator[ReadinessReason]:
    endpoints = {state.resource: state for state in status.endpoints()}
    for resource in resources:
        state = endpoints.get(resource.name, EndpointState(resource.name))
        if state.registered or not (resource.listed or resource.held):
            continue
        waited_s = status.clock() - state.since
        why = state.last_error or "the kubelet has not answered yet"
        if state.other is not None:
            yield ReadinessReason(_OTHER_PLUGIN, f"{resource.name} is not registered: {why}")
            continue
        code = "kubelet-silent" if state.attempts and waited_s > intervals.silent_s else "not-registered"
        yield ReadinessReason(code, f"{resource.name} is not registered: {why}")


def _held_back(report: Report) -> Iterator[ReadinessReason]:
    if report.snapshot is not None and (other := report.snapshot.other_plugin):
        yield ReadinessReason(_OTHER_PLUGIN, f"{other}; no GPU is changed before that has ended")


def _kept(status: AgentStatus) -> Iterator[ReadinessReason]:
    if names := [name for state in status.endpoints() for name in state.kept]:
        message = f"the kubelet keeps {listed(names, _SHOWN)}, and asks there when the agent ends"
        yield ReadinessReason("kubelet-keeps-socket", message)


def _without_stream(
    status: AgentStatus, resources: Iterable[ResourceReport]
) -> Iterator[tuple[ResourceName, float]]:
    """Resources that are registered and not watched, with for how long."""
    endpoints = {state.resource: state for state in status.endpoints()}
    for resource in resources:
        state = endpoints.get(resource.name)
        if state is not None and state.unwatched_since is not None and (resource.listed or resource.held):
            yield resource.name, status.clock() - state.unwatched_since


def _unwatched(status: AgentStatus) -> Iterator[ReadinessReason]:
    found = status.watch_observation()
    if found is not None and found.hidden:
        yield ReadinessReason("processes-hidden", f"containers cannot be watched: {found.hidden}")


def _unconnected(status: AgentStatus, report: Report) -> Iterator[ReadinessReason]:
    if (seen := status.mps_clients) is None:
        return
    now_s = status.clock()
    for gpu in report.gpus:
        for daemon in gpu.daemons:
            if seen.missing(daemon, report.entries, now_s):
                message = (
                    f"GPU {gpu.index}, {daemon.device}: shares are held, and since the agent began no "
                    "process has connected to the MPS daemon, whose pipe is mounted read-only: if those "
                    "containers fail, run the agent without --mps-pipe-read-only (chart: "
                    "agent.mpsPipeReadOnly), and start them again"
                )
                yield ReadinessReason(PIPE_READ_ONLY, message)


def _degraded(report: Report) -> Iterator[ReadinessReason]:
    code = _POLICY_CODES.get(report.policy.reason, "policy-refused")
    for problem in report.policy.problems:
        yield ReadinessReason(code, str(problem))
    layout = report.mig_config
    if layout is not None and layout.state is MigConfigState.FAILED:
        yield ReadinessReason("mig-config-failed", f"{layout.name}: {layout.reason}")
    yield from _degraded_gpus(report)
    yield from _left(report)
    if report.other_labels:
        yield ReadinessReason("labels-written-twice", report.other_labels)
    if report.slurm_waits:
        yield ReadinessReason("slurm-waits", report.slurm_waits)
    yield from _dependencies(report.dependencies)


def _degraded_gpus(report: Report) -> Iterator[ReadinessReason]:
    for gpu in report.gpus:
        if gpu.plan is not None and gpu.plan.conflict:
            yield ReadinessReason("shares-conflict", f"GPU {gpu.index} ({gpu.uuid}): {gpu.plan.conflict}")
        if not gpu.health.state.offered:
            yield ReadinessReason("gpu-unhealthy", f"GPU {gpu.index} ({gpu.uuid}): {gpu.health.reason}")
        for gi_id, phase in gpu.instances.items():
            if not phase.state.offered:
                yield ReadinessReason(
                    "gpu-unhealthy", f"GPU {gpu.index} ({gpu.uuid}), GPU instance {gi_id}: {phase.reason}"
                )
        for daemon in gpu.daemons:
            if daemon.phase is not DaemonPhase.SERVING:
                yield ReadinessReason(
                    "mps-daemon", f"GPU {gpu.index}, {daemon.device}: {daemon.reason or daemon.phase}"
                )
            elif daemon.bound_to:
                yield ReadinessReason(
                    "mps-daemon-bound", f"GPU {gpu.index}, {daemon.device}: {daemon.bound_to}"
                )
            if daemon.full:
                yield ReadinessReason(
                    "mps-directory-full", f"GPU {gpu.index}, {daemon.device}: {daemon.full}"
                )
    if cold := [gpu.index for gpu in report.node.inventory if gpu.persistence is False]:
        yield ReadinessReason(
            "persistence-off", f"{gpus(cold)}: initialised anew by each first client, 1 to 3 s each"
        )
    for reason in dict.fromkeys(without_files(report.node.inventory).values()):
        yield ReadinessReason("device-file-missing", f"MIG devices cannot be used: {reason}")


def _left(report: Report) -> Iterator[ReadinessReason]:
    for entry in report.entries:
        names = " or ".join(f"{holder.namespace}/{holder.pod}" for holder in entry.holders)
        pod = names or listed(list(entry.former_pods), 2)
        forgotten = f"the kubelet has forgotten pod {pod} since {_moment(report, entry.ended_s)}"
        if entry.left:
            names_left = listed([str(process) for process in entry.left], 4)
            runs = "runs" if len(entry.left) == 1 else "run"
            unseen = entry.unseen and (
                f", as far as it is known: since {_moment(report, entry.unseen_s)} nobody could look "
                f"({entry.unseen})"
            )
            message = (
                f"{entry.id} is given to nobody: {forgotten}, and {names_left} of it still {runs}{unseen}; "
                f"if it cannot end: partage free {entry.id}"
            )
            yield ReadinessReason("process-left", message)
        elif entry.unseen:
            message = (
                f"a GPU that has to change waits for {entry.id}: {forgotten}, and since "
                f"{_moment(report, entry.unseen_s)} nobody could look whether a process of it still runs: "
                f"{entry.unseen}; without waiting: partage free {entry.id}"
            )
            yield ReadinessReason("process-unknown", message)


def _moment(report: Report, clock_s: float | None) -> str:
    """The time of day of a moment on the agent's clock, RFC 3339."""
    at_s = report.made.at_s - report.made.clock_s + (clock_s or 0.0)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(round(at_s)))


def _dependencies(needed: DependencyProblems) -> Iterator[ReadinessReason]:
    problems = {
        "holders-unknown": needed.pod_resources,
        "holds-unproven": needed.checkpoint and f"GPUs that have to change wait: {needed.checkpoint}",
        "processes-unseen": needed.processes
        and f"the kubelet's word alone says when a share is free: {needed.processes}",
        "state-not-saved": needed.state_dir,
        "cdi-incomplete": needed.cdi,
        "guard-not-written": needed.guard,
        "limits-not-set": needed.limits
        and f"the driver's memory limits cannot be set by Partage's own hook: {needed.limits}",
        "node-not-updated": needed.api_server,
        "history-not-saved": needed.history,
        "claims-not-served": needed.claims,
    }
    yield from (ReadinessReason(code, problem) for code, problem in problems.items() if problem)

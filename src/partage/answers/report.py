"""The agent's report as a document, and the file that has it (docs/reference/agent.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Raw

from partage import __version__
from partage.agent.options import Intervals
from partage.agent.status.readiness import Readiness, readiness_of
from partage.agent.status.status import AgentStatus, WatchObservation
from partage.answers.documents.document import row
from partage.answers.documents.node import node_row
from partage.answers.documents.report import (
    DaemonRow,
    EntryRow,
    HealthDocument,
    HealthRow,
    PlannedFrom,
    PolicyRow,
    ReportDocument,
    ReportedGpuRow,
    ReportedResourceRow,
    ReportingAgent,
)
from partage.answers.documents.resources import ResourceRow, Verify, resource_rows
from partage.answers.documents.use import TimeOf, use_row, watch_row
from partage.codec.values import encode_replacing
from partage.edges.host.procfs import pid_namespace
from partage.edges.kubelet.port import EndpointState
from partage.model.ids import DeviceUuid
from partage.model.mps import DaemonState
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.reconcile.verification import verifier
from partage.plan.report import GpuReport, Report, ResourceReport
from partage.plan.serve.held_limits import as_seen
from partage.plan.serve.ledger_entry import LedgerEntry


def report_document(report: Report, status: AgentStatus, readiness: Readiness) -> ReportDocument:
    """Everything that the agent knows, as one document."""
    time_of, policy, observation = _time_of(report), report.policy, status.watch_observation()
    return ReportDocument(
        at=time_of(report.made.clock_s),
        agent=ReportingAgent(__version__, os.getpid(), pid_namespace(Path("/proc")), report.made.number),
        healthy=not readiness.unhealthy,
        reasons=readiness.unhealthy,
        degraded=readiness.degraded,
        policy=row(PolicyRow, policy, problems=(*policy.problems, *policy.warnings)),
        mig_config=report.mig_config,
        node=node_row(report.node.inventory),
        gpus=tuple(_gpu_row(gpu, time_of, report.doubts) for gpu in report.gpus),
        resources=_resource_rows(report, status),
        held=tuple(_entry_row(entry, time_of) for entry in report.entries),
        jobs=report.jobs,
        watch=None if observation is None else watch_row(observation, time_of),
        use=use_row(status.use_seen(), status.clock(), time_of),
        offer=as_seen(report.offer, report.entries),
        planned_from=Raw(encode_replacing(_planned_from(report))),
    )


def health_document(readiness: Readiness) -> HealthDocument:
    """What a probe is told."""
    healthy = not readiness.unhealthy
    return HealthDocument(healthy=healthy, reasons=readiness.unhealthy, degraded=readiness.degraded)


def verify_of(report: Report) -> Verify | None:
    """What the agent has seen in force."""
    now = report.snapshot
    if now is None:
        return None
    kinds = {gpu: (*serving.offer, *serving.leaving) for gpu, serving in now.served.items()}
    return verifier(kinds, now.observed, report.watched, report.doubts, report.entries)


def _planned_from(report: Report) -> PlannedFrom | None:
    if report.policy_in_force is None or report.snapshot is None:
        return None
    return PlannedFrom(report.policy_in_force, report.snapshot, report.labels)


def _time_of(report: Report) -> TimeOf:
    offset_s = report.made.at_s - report.made.clock_s

    def time_of(clock_s: float) -> str:
        moment = datetime.fromtimestamp(clock_s + offset_s, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    return time_of


def _gpu_row(gpu: GpuReport, time_of: TimeOf, doubts: Mapping[DeviceUuid, str]) -> ReportedGpuRow:
    plan = gpu.plan or GpuPlan(Phase.UNKNOWN)
    return row(
        ReportedGpuRow,
        gpu,
        wanted_strategy=gpu.wanted,
        health=row(HealthRow, gpu.health),
        instances={gi_id: row(HealthRow, health) for gi_id, health in gpu.instances.items()},
        lost=gpu.lost or None,
        phase=plan.phase if gpu.plan else None,
        reason=plan.reason or None,
        steps=tuple(map(str, plan.steps)),
        waiting_for=tuple(_entry_row(entry, time_of) for entry in plan.waiting_for),
        retry_at=None if plan.again_s is None else time_of(plan.again_s),
        mps_daemons=tuple(_daemon_row(daemon, doubts) for daemon in gpu.daemons),
        processes=plan.processes,
    )


def _daemon_row(daemon: DaemonState, doubts: Mapping[DeviceUuid, str]) -> DaemonRow:
    return DaemonRow(
        device=daemon.device,
        state=daemon.phase,
        pid=daemon.pid,
        clients=len(daemon.clients),
        memory_bytes=daemon.limits.memory_bytes,
        threads_percent=daemon.limits.threads_percent,
        reason=daemon.reason or None,
        doubt=doubts.get(daemon.device),
    )


def _resource_rows(report: Report, status: AgentStatus) -> tuple[ReportedResourceRow, ...]:
    offered = {
        resource_row.name: resource_row for resource_row in resource_rows(report.offer, verify_of(report))
    }
    states = {state.resource: state for state in status.endpoints()}
    return tuple(
        _resource_row(resource, offered.get(resource.name), states.get(resource.name))
        for resource in report.resources
    )


def _resource_row(
    resource: ResourceReport, offered: ResourceRow | None, state: EndpointState | None
) -> ReportedResourceRow:
    """The row of ``plan``, and how the resource stands with the kubelet."""
    state = state or EndpointState(resource.name)
    return row(
        ReportedResourceRow,
        offered or ResourceRow(resource.name, 0, None, None, None, None, ()),
        listed=resource.listed,
        healthy=resource.healthy,
        held=resource.held,
        registered=state.registered,
        watching=bool(state.watching),
        registrations=state.registrations,
        last_error=state.last_error or None,
    )


def _entry_row(entry: LedgerEntry, time_of: TimeOf) -> EntryRow:
    return row(
        EntryRow,
        entry,
        since=time_of(entry.since_s),
        ended_at=None if entry.ended_s is None else time_of(entry.ended_s),
        unseen=entry.unseen or None,
        unseen_at=None if entry.unseen_s is None else time_of(entry.unseen_s),
        claim=entry.claim or None,
    )


# --- the file ----------------------------------------------------------------------------------------


class ReportFile:
    """``<run-dir>/report.json``, for other verbs: replaced when it would say something new."""

    def __init__(self, status: AgentStatus, intervals: Intervals, path: Path) -> None:
        self._status = status
        self._intervals = intervals
        self._path = path
        self._said: tuple[object, ...] | None = None

    def is_outdated(self) -> bool:
        """Whether there is something new to write."""
        report = self._status.report
        return report is not None and self._says(report, self._readiness()) != self._said

    def renew(self) -> str:
        """Write it if need be; why it cannot be written, else empty."""
        report = self._status.report
        if report is None:
            return ""
        readiness = self._readiness()
        says = self._says(report, readiness)
        if says == self._said:
            return ""
        try:
            _replace(self._path, report_document(report, self._status, readiness))
        except OSError as error:
            return f"{self._path}: {error.strerror or error}"
        self._said = says
        return ""

    def _readiness(self) -> Readiness:
        return readiness_of(self._status, self._intervals)

    def _says(self, report: Report, readiness: Readiness) -> tuple[object, ...]:
        """Everything in it that makes it new if it changes."""
        return (
            report.without_moment(),
            [reason.code for reason in (*readiness.unhealthy, *readiness.degraded)],
            [(state.resource, state.registered, state.registrations) for state in self._status.endpoints()],
            _watched(self._status.watch_observation()),
            _sampled_minute(self._status.use_seen().sampled_s),
        )


def _sampled_minute(sampled_s: float | None) -> int | None:
    """What makes samples news for the file: once a minute, while somebody has the GPUs sampled."""
    return None if sampled_s is None else int(sampled_s // 60)


def _watched(observation: WatchObservation | None) -> object:
    """What makes a check news for the file: figures change with every check, and are left to the metrics."""
    if observation is None:
        return None
    violations = observation.watched.violations
    return observation.hidden, [
        (violation.concern, violation.usage.device, violation.usage.container) for violation in violations
    ]


def _replace(path: Path, document: ReportDocument) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(encode_replacing(document) + b"\n")
    beside.replace(path)

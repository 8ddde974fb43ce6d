"""The agent's report as JSON: ``/report.json``, ``/healthz``, ``<run-dir>/report.json`` (docs/agent.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partage import __version__
from partage.agent.options import Intervals
from partage.agent.status.readiness import Readiness, ReadinessReason, assess
from partage.agent.status.status import AgentStatus, WatchObservation
from partage.codec.values import to_plain
from partage.edges.hardware.procfs import pid_namespace
from partage.edges.kubelet.port import EndpointState
from partage.faces.documents import Verify, node_rows, resource_rows
from partage.faces.reported import PlannedFrom
from partage.model.health import HealthStatus
from partage.model.mps import DaemonState
from partage.plan.reconcile.node_plan import GpuPlan
from partage.plan.reconcile.verification import verified
from partage.plan.report import GpuReport, PolicyReport, Report
from partage.plan.serve.ledger import LedgerEntry
from partage.plan.serve.watchdog import ContainerUsage, GrantKind


def report_document(report: Report, status: AgentStatus, readiness: Readiness) -> dict[str, Any]:
    """Everything that the agent knows, as one document."""
    at = _Times(report)
    return {
        "apiVersion": "partage/v1",
        "kind": "Report",
        "at": at.said(report.made.clock_s),
        "agent": {
            "version": __version__,
            "pid": os.getpid(),
            "pidNamespace": pid_namespace(Path("/proc")),
            "turns": report.made.number,
        },
        "healthy": not readiness.not_well,
        "reasons": _reasons(readiness.not_well),
        "degraded": _reasons(readiness.degraded),
        "policy": _policy(report.policy),
        "node": node_rows(report.node.inventory),
        "gpus": [_gpu(gpu, at) for gpu in report.gpus],
        "resources": _resources(report, status.endpoints()),
        "held": [_entry(entry, at) for entry in report.entries],
        "watch": _watch(look, at) if (look := status.look()) is not None else None,
        "offer": to_plain(report.offer),
        "plannedFrom": planned_from(report),
    }


def planned_from(report: Report) -> dict[str, Any] | None:
    """What the planner looked at, whole: ``partage plan`` plans from it as the agent does."""
    if report.policy_in_force is None or report.snapshot is None:
        return None
    plain: dict[str, Any] = to_plain(PlannedFrom(report.policy_in_force, report.snapshot))
    return plain


def health_document(readiness: Readiness) -> dict[str, Any]:
    """What a probe is told."""
    return {
        "apiVersion": "partage/v1",
        "kind": "Health",
        "healthy": not readiness.not_well,
        "reasons": _reasons(readiness.not_well),
        "degraded": _reasons(readiness.degraded),
    }


class ReportFile:
    """``<run-dir>/report.json``, for ``partage show``: replaced when it would say something new."""

    def __init__(self, status: AgentStatus, intervals: Intervals, path: Path) -> None:
        self._status = status
        self._intervals = intervals
        self._path = path
        self._said: tuple[object, ...] | None = None

    def renew(self) -> str:
        """Write it if need be; why it cannot be written, else empty."""
        report = self._status.report
        if report is None:
            return ""
        readiness = assess(self._status, self._intervals)
        endpoints = self._status.endpoints()
        codes = [reason.code for reason in readiness.not_well]
        says = (
            report.without_moment(),
            codes,
            [(state.resource, state.registered, state.registrations) for state in endpoints],
            _watched(self._status.look()),
        )
        if says == self._said:
            return ""
        try:
            _replace(self._path, report_document(report, self._status, readiness))
        except OSError as error:
            return f"{self._path}: {error.strerror or error}"
        self._said = says
        return ""


def _replace(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


class _Times:
    """The agent's clock as times of day."""

    def __init__(self, report: Report) -> None:
        self._offset_s = report.made.at_s - report.made.clock_s

    def said(self, clock_s: float) -> str:
        """RFC 3339, in UTC, to the millisecond."""
        moment = datetime.fromtimestamp(clock_s + self._offset_s, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _watched(look: WatchObservation | None) -> object:
    """What makes a look news for the file: figures change with every look, and are left to the metrics."""
    if look is None:
        return None
    violations = look.watched.violations
    return look.blind, [(one.concern, one.usage.device, one.usage.container) for one in violations]


def _reasons(reasons: Iterable[ReadinessReason]) -> list[dict[str, str]]:
    return [{"code": reason.code, "message": reason.message} for reason in reasons]


def _policy(policy: PolicyReport) -> dict[str, Any]:
    return {
        "state": str(policy.state),
        "source": policy.source,
        "config": policy.config,
        "digest": policy.digest,
        "problems": [
            {
                "file": problem.file,
                "path": problem.path,
                "severity": problem.severity,
                "message": problem.message,
                "hint": problem.hint,
            }
            for problem in (*policy.problems, *policy.warnings)
        ],
    }


def _gpu(gpu: GpuReport, at: _Times) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "product": gpu.product,
        "strategy": None if gpu.strategy is None else str(gpu.strategy),
        "wantedStrategy": None if gpu.wanted is None else str(gpu.wanted),
        "health": _phase(gpu.health),
        "instances": {str(gi_id): _phase(phase) for gi_id, phase in gpu.instances.items()},
        "lost": gpu.lost or None,
        **_plan(gpu.plan, at),
        "mpsDaemons": [_daemon(one) for one in gpu.daemons],
        "held": gpu.held,
    }


def _plan(plan: GpuPlan | None, at: _Times) -> dict[str, Any]:
    """Where the GPU stands between what it is and what the policy wants."""
    if plan is None:
        return {"phase": None, "reason": None, "steps": [], "waitingFor": [], "retryAt": None}
    return {
        "phase": str(plan.phase),
        "reason": plan.reason or None,
        "steps": [str(step) for step in plan.steps],
        "waitingFor": [_entry(entry, at) for entry in plan.waiting_for],
        "retryAt": None if plan.again_s is None else at.said(plan.again_s),
    }


def _daemon(one: DaemonState) -> dict[str, Any]:
    return {
        "device": one.device,
        "state": str(one.phase),
        "pid": one.pid,
        "clients": len(one.clients),
        "memoryBytes": one.limits.memory_bytes,
        "threadsPercent": one.limits.threads_percent,
        "reason": one.reason or None,
    }


def _phase(phase: HealthStatus) -> dict[str, str]:
    return {"state": str(phase.state), "reason": phase.reason}


def _resources(report: Report, endpoints: Iterable[EndpointState]) -> list[dict[str, Any]]:
    """The rows of ``plan``, and how they stand with the kubelet."""
    offered = {row["name"]: row for row in resource_rows(report.offer, verify_of(report))}
    states = {state.resource: state for state in endpoints}
    rows = []
    for resource in report.resources:
        state = states.get(resource.name, EndpointState(resource.name))
        rows.append(
            {
                **offered.get(resource.name, {"name": resource.name, "count": 0, "gpus": []}),
                "listed": resource.listed,
                "healthy": resource.healthy,
                "held": resource.held,
                "registered": state.registered,
                "watching": bool(state.watching),
                "registrations": state.registrations,
                "lastError": state.last_error or None,
            }
        )
    return rows


def verify_of(report: Report) -> Verify | None:
    """What the agent has seen in force."""
    now = report.snapshot
    if now is None:
        return None
    return lambda share: verified(share, now.observed, report.watched)


def _watch(look: WatchObservation, at: _Times) -> dict[str, Any]:
    """Containers that hold shares of the GPUs that are watched, and those of which something is wrong."""
    watched = look.watched
    return {
        "at": at.said(look.at_s),
        "blind": look.blind or None,
        "containers": [_usage(usage) for usage in watched.usages if usage.grant is GrantKind.HELD],
        "concerns": [
            {**_usage(one.usage), "concern": str(one.concern), "reason": one.reason}
            for one in watched.violations
        ],
    }


def _usage(usage: ContainerUsage) -> dict[str, Any]:
    holder = usage.holder
    return {
        "gpu": usage.gpu,
        "device": usage.device,
        "namespace": holder.namespace if holder else None,
        "pod": holder.pod if holder else None,
        "container": holder.container if holder else None,
        "containerId": usage.container,
        "pids": list(usage.pids),
        "usedBytes": usage.used_bytes,
        "atLeast": usage.partly,
        "shareBytes": usage.granted_bytes,
        "guarantee": None if usage.guarantee is None else str(usage.guarantee),
        "over": usage.over,
    }


def _entry(entry: LedgerEntry, at: _Times) -> dict[str, Any]:
    return {
        "resource": entry.resource,
        "id": entry.id,
        "certainty": str(entry.certainty),
        "holders": [
            {"namespace": holder.namespace, "pod": holder.pod, "container": holder.container}
            for holder in entry.holders
        ],
        "since": at.said(entry.since_s),
    }

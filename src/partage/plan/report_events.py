"""What changed between two reports, as events for the log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import field

from partage.model.health import HealthStatus
from partage.plan.report import GpuReport, MigConfigReport, MigConfigState, Report, ResourceReport
from partage.values import Frozen


class ReportEvent(Frozen):
    """One event: what happened, and the facts. warning: logged as one."""

    event: str
    facts: Mapping[str, object] = field(default_factory=dict)
    warning: bool = False


def diff_reports(before: Report | None, now: Report) -> Iterator[ReportEvent]:
    """The differences. The same event of several GPUs (their helper does not answer) is one event."""
    if before is now:
        return
    gpus = {gpu.uuid: gpu for gpu in before.gpus} if before else {}
    yield from _gathered(
        (gpu, event) for gpu in now.gpus if gpu.uuid in gpus for event in _gpu(gpus[gpu.uuid], gpu)
    )
    if now.mig_config is not None and (before is None or before.mig_config != now.mig_config):
        yield from _mig_config(before.mig_config if before else None, now.mig_config)
    known = {entry.hold for entry in before.entries if entry.left} if before else set()
    for entry in now.entries:
        if entry.left and entry.hold not in known:
            facts = {"share": entry.id, "processes": [str(process) for process in entry.left]}
            yield ReportEvent("processes left", {**facts, "pod": entry.left[0].pod}, warning=True)
    resources = {resource.name: resource for resource in before.resources} if before else {}
    for resource in now.resources:
        yield from _resource(resources.get(resource.name), resource)


def _mig_config(before: MigConfigReport | None, now: MigConfigReport) -> Iterator[ReportEvent]:
    if before is None or (before.name, before.state) != (now.name, now.state):
        facts = {"config": now.name, "state": now.state, "reason": now.reason or None}
        yield ReportEvent("mig layout of the label", facts, warning=now.state is MigConfigState.FAILED)


def _gathered(events: Iterable[tuple[GpuReport, ReportEvent]]) -> Iterator[ReportEvent]:
    """The same event of several GPUs as one, which names their indexes."""
    alike: list[tuple[ReportEvent, list[GpuReport]]] = []
    for gpu, event in events:
        gpus = next((gpus for report_event, gpus in alike if report_event == event), None)
        if gpus is None:
            alike.append((event, [gpu]))
        else:
            gpus.append(gpu)
    for event, gpus in alike:
        yield ReportEvent(event.event, {**_who(gpus), **event.facts}, event.warning)


def _who(gpus: list[GpuReport]) -> dict[str, object]:
    if len(gpus) > 1:
        return {"gpus": [gpu.index for gpu in gpus]}
    return {"gpu": gpus[0].uuid, "index": gpus[0].index}


def _gpu(before: GpuReport, now: GpuReport) -> Iterator[ReportEvent]:
    """The events of one GPU, without its name."""
    if before.strategy is not now.strategy:
        yield ReportEvent("gpu changed", {"from": before.strategy, "to": now.strategy})
    waiting_for = now.plan.waiting_for if now.plan else ()
    if waiting_for and (before.plan is None or before.plan.waiting_for != waiting_for):
        holders = {f"{who.namespace}/{who.pod}" for entry in waiting_for for who in entry.holders}
        yield ReportEvent("gpu waits", {"for": sorted(holders) or None, "held": len(waiting_for)})
    conflict = now.plan.conflict if now.plan else ""
    if conflict and (before.plan is None or before.plan.conflict != conflict):
        yield ReportEvent("shares in conflict", {"reason": conflict}, warning=True)
    yield from _health("gpu health changed", {}, before.health, now.health)
    for gi in sorted({*before.instances, *now.instances}):
        phases = before.instances.get(gi, HealthStatus()), now.instances.get(gi, HealthStatus())
        yield from _health("gpu instance health changed", {"gi": gi}, *phases)


def _health(
    event: str, which: Mapping[str, object], before: HealthStatus, now: HealthStatus
) -> Iterator[ReportEvent]:
    if before.state is not now.state:
        facts = {**which, "from": before.state, "to": now.state, "reason": now.reason or None}
        yield ReportEvent(event, facts, warning=not now.state.offered)


def _resource(before: ResourceReport | None, now: ResourceReport) -> Iterator[ReportEvent]:
    if before is None or (before.listed, before.healthy) != (now.listed, now.healthy):
        yield ReportEvent(
            "shares listed", {"resource": now.name, "listed": now.listed, "healthy": now.healthy}
        )

"""What a turn changed, as events for the log. Pure: two reports in, events out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from partage.agent.report import GpuReport, Report, ResourceReport


@dataclass(frozen=True, slots=True)
class Told:
    """One event: what happened, and the facts. grave: we go on, but somebody should look."""

    event: str
    facts: Mapping[str, object] = field(default_factory=dict)
    grave: bool = False


def told(before: Report | None, now: Report) -> Iterator[Told]:
    """What is different, GPU by GPU and resource by resource."""
    if before is now:
        return
    gpus = {gpu.uuid: gpu for gpu in before.gpus} if before else {}
    for gpu in now.gpus:
        yield from _gpu(gpus.get(gpu.uuid), gpu)
    resources = {resource.name: resource for resource in before.resources} if before else {}
    for resource in now.resources:
        yield from _resource(resources.get(resource.name), resource)


def _gpu(before: GpuReport | None, now: GpuReport) -> Iterator[Told]:
    who = {"gpu": now.uuid, "index": now.index}
    if before is None:
        return
    if before.strategy is not now.strategy:
        yield Told("gpu changed", {**who, "from": before.strategy, "to": now.strategy})
    if now.draining and (not before.draining or before.waiting != now.waiting):
        waits_for = sorted({str(holder.pod) for entry in now.waiting or () for holder in entry.holders})
        yield Told("gpu waits", {**who, "for": waits_for or None, "held": len(now.waiting or ())})
    if before.health.state is not now.health.state:
        facts = {**who, "from": before.health.state, "to": now.health.state, "reason": now.health.reason}
        yield Told("gpu health changed", facts, grave=not now.health.state.offered)


def _resource(before: ResourceReport | None, now: ResourceReport) -> Iterator[Told]:
    if before is None or (before.listed, before.healthy) != (now.listed, now.healthy):
        yield Told("shares listed", {"resource": now.name, "listed": now.listed, "healthy": now.healthy})

"""What containers use, as the watchdog of the agent saw it last."""

from __future__ import annotations

from collections.abc import Callable

from partage.agent.status.status import WatchObservation
from partage.answers.documents.document import row
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid
from partage.model.share import Guarantee
from partage.plan.serve.watchdog import ContainerUsage, GrantKind, Violation, ViolationKind
from partage.values import Frozen

TimeOf = Callable[[float], str]
"""A time of the agent's clock as RFC 3339, in UTC, to the millisecond."""


class UsageRow(Frozen):
    """What one container uses of a device. pids: its processes. at_least: some of its processes have no
    figure. share_bytes: memory of its shares. over: it uses more than its shares.
    """

    gpu: GpuUuid
    device: DeviceUuid
    namespace: str | None
    pod: str | None
    container: str | None
    container_id: ContainerId
    pids: tuple[int, ...]
    used_bytes: int
    at_least: bool
    share_bytes: int
    guarantee: Guarantee | None
    over: bool


class ConcernRow(UsageRow):
    """A container that does something wrong. concern: ``over``: it uses more than its shares; ``ungranted``:
    it holds no share. reason: a sentence.
    """

    concern: ViolationKind
    reason: str


class WatchRow(Frozen):
    """The watchdog's last check. hidden: why processes may be missing."""

    at: str
    hidden: str | None
    containers: tuple[UsageRow, ...]
    concerns: tuple[ConcernRow, ...]


def watch_row(observation: WatchObservation, time_of: TimeOf) -> WatchRow:
    """Containers that hold shares of GPUs that are watched, and those that do something wrong."""
    usages, violations = observation.watched.usages, observation.watched.violations
    return WatchRow(
        at=time_of(observation.at_s),
        hidden=observation.hidden or None,
        containers=tuple(_usage_row(usage) for usage in usages if usage.grant is GrantKind.HELD),
        concerns=tuple(_concern_row(violation) for violation in violations),
    )


def _concern_row(violation: Violation) -> ConcernRow:
    usage = _usage_row(violation.usage)
    return row(ConcernRow, usage, concern=violation.concern, reason=violation.reason)


def _usage_row(usage: ContainerUsage) -> UsageRow:
    holder = usage.holder
    return row(
        UsageRow,
        usage,
        namespace=holder.namespace if holder else None,
        pod=holder.pod if holder else None,
        container=holder.container if holder else None,
        container_id=usage.container,
        at_least=usage.partly,
        share_bytes=usage.granted_bytes,
    )

"""What GPUs and containers do: as the agent sampled it last, the last hour of each GPU, the days that it
keeps, and what its watchdog saw last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Literal, TypeVar, cast

from msgspec import Raw, field

from partage.agent.status.status import UsageObservation, UseSeen, WatchObservation
from partage.answers.documents.document import Document, row
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid
from partage.model.samples import Samples
from partage.model.share import Guarantee
from partage.model.usage_day import UsageDay
from partage.plan.serve.watchdog import ContainerUsage, GrantKind, Violation, ViolationKind
from partage.plan.usage import MINUTES, ContainerUse, LastHour, UseMinute, busy_of
from partage.values import Frozen

TimeOf = Callable[[float], str]
"""A time of the agent's clock as RFC 3339, in UTC, to the millisecond."""


Name = TypeVar("Name")


class ContainerOnDevice(Frozen, Generic[Name]):
    """A container that uses a GPU or MIG device. Name: of text; or None, too, where it may not be known."""

    gpu: GpuUuid
    device: DeviceUuid
    namespace: Name
    pod: Name
    container: Name


class UsageRow(ContainerOnDevice[str | None]):
    """What one container uses of a device. pids: its processes. at_least: some of its processes have no
    figure. share_bytes: memory of its shares. over: it uses more than its shares.
    """

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


FRESH_S = 90.0
"""A sample is taken for the present one for so long. While a share is held, the history of use samples every
30 seconds; two of them may be missed."""


class SampledGpuRow(Frozen):
    """One GPU. utilisation: part of the time in which it worked, 0 to 1; of a GPU in MIG mode, of its busiest
    GPU instance. None: not measured.
    """

    gpu: GpuUuid
    utilisation: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: float | None
    power_w: float | None
    power_limit_w: float | None


class ContainerUseRow(ContainerOnDevice[str]):
    """One container on one GPU or MIG device. used_bytes: None: not known; at_least: some of its processes
    have no figure. peak_bytes: the highest since it began. utilisation: its part of the GPU's time, 0 to 1.
    """

    used_bytes: int | None
    at_least: bool
    peak_bytes: int | None
    utilisation: float | None


class HourRow(Frozen):
    """The last hour of one GPU: one figure for each minute, the oldest first, the highest of its samples;
    None: nobody sampled in that minute, or it is not measured. begins_at: the first minute.
    """

    begins_at: str
    utilisation: tuple[float | None, ...]
    memory_used_bytes: tuple[int | None, ...]
    temperature_c: tuple[float | None, ...]
    power_w: tuple[float | None, ...]


class UseRow(Frozen):
    """began_at: since when the agent could have sampled. sampled_at: when it did last; None: never. It
    samples while a share is held, somebody scrapes, or its page is open. gpus, containers: empty where the
    last sample is more than FRESH_S old. hidden: why processes may be missing.
    """

    began_at: str
    sampled_at: str | None
    gpus: tuple[SampledGpuRow, ...] = ()
    containers: tuple[ContainerUseRow, ...] = ()
    hidden: str | None = None
    hour: Mapping[GpuUuid, HourRow] = field(default_factory=dict)


def use_row(seen: UseSeen, now_s: float, time_of: TimeOf) -> UseRow:
    """What was sampled, at ``now_s`` of the agent's clock."""
    usage: UsageObservation | None = seen.found
    if usage is not None and now_s - usage.at_s > FRESH_S:
        usage = None
    return UseRow(
        began_at=time_of(seen.began_s),
        sampled_at=None if seen.sampled_s is None else time_of(seen.sampled_s),
        gpus=() if usage is None else gpu_use_rows(usage.samples),
        containers=() if usage is None else tuple(map(_container_row, usage.use.containers)),
        hidden=None if usage is None else usage.use.hidden or None,
        hour=_hours(seen.hour, int(now_s // 60), time_of),
    )


def gpu_use_rows(samples: Samples) -> tuple[SampledGpuRow, ...]:
    """The GPUs that answer."""
    return tuple(
        SampledGpuRow(
            gpu=gpu.gpu,
            utilisation=_figure(busy_of(gpu, samples)),
            memory_used_bytes=None if gpu.memory is None else gpu.memory.used_bytes,
            memory_total_bytes=None if gpu.memory is None else gpu.memory.total_bytes,
            temperature_c=_figure(gpu.temperature_c),
            power_w=_figure(gpu.power_w),
            power_limit_w=_figure(gpu.power_limit_w),
        )
        for gpu in samples.gpus
    )


def _container_row(use: ContainerUse) -> ContainerUseRow:
    who, amount = use.holder, use.amount
    return ContainerUseRow(
        gpu=use.gpu,
        device=use.device,
        namespace=who.namespace,
        pod=who.pod,
        container=who.container,
        used_bytes=amount.used_bytes,
        at_least=amount.partly,
        peak_bytes=amount.peak_bytes,
        utilisation=_figure(amount.sm),
    )


def _figure(value: float | None) -> float | None:
    """In as few digits as anybody needs. A driver gives some of them as integers."""
    return None if value is None else round(float(value), 3)


def _hours(hour: LastHour, minute: int, time_of: TimeOf) -> dict[GpuUuid, HourRow]:
    """GPUs of which a minute of the last hour is known. minute: the present one."""
    first = minute - MINUTES + 1
    found = {}
    for gpu, rows in hour.items():
        by_minute = {row.minute: row for row in rows if row.minute >= first}
        if by_minute:
            all_of_it = [
                by_minute.get(first + passed) or UseMinute(first + passed) for passed in range(MINUTES)
            ]
            found[gpu] = _hour_row(time_of(first * 60.0), all_of_it)
    return found


def _hour_row(begins_at: str, rows: Iterable[UseMinute]) -> HourRow:
    some = tuple(rows)

    def column(figure: Callable[[UseMinute], float | None]) -> tuple[float | None, ...]:
        return tuple(_figure(figure(row)) for row in some)

    return HourRow(
        begins_at=begins_at,
        utilisation=column(lambda row: row.utilisation),
        memory_used_bytes=tuple(row.memory_bytes for row in some),
        temperature_c=column(lambda row: row.temperature_c),
        power_w=column(lambda row: row.power_w),
    )


class HistoryDocument(Document, kw_only=True):
    """What the agent has kept of the use of GPUs. days: the oldest first."""

    kind: Literal["History"] = "History"
    days: tuple[UsageDay, ...]


def history_document(files: Iterable[Raw]) -> HistoryDocument:
    """files: the days as they are on the disk. To take them apart would cost the agent memory."""
    return HistoryDocument(days=cast("tuple[UsageDay, ...]", tuple(files)))

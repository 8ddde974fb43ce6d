"""Who uses how much of each GPU: samples joined with the ledger and with the names of containers. Pure.

A process belongs to the container or Slurm job in its cgroup. What cannot be given to a container or job is
listed beside them with the reason, so that the sum over one device is what the driver reports for it.
Figures that are not known are None; they are 0 only where all processes are visible and none uses anything.

The last hour of each GPU is one row a minute, made of samples that were taken anyway: nothing is asked for
it, and nothing is stored. Minutes in which nobody took a sample have no row, so that "not sampled" is never
shown as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from msgspec.structs import replace

from partage.model.cgroup import Owner, parse_cgroup
from partage.model.driver_limit import LimitAt
from partage.model.gpu_use import GpuProcess, ProcessKind
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, is_job
from partage.model.samples import DeviceMemory, GpuSample, OwnerPeak, ProcessActivity, Samples
from partage.model.share import DeviceOffer, Guarantee, weakest
from partage.plan.serve.ledger_entry import Holder
from partage.plan.serve.watchdog import (
    NOTHING_COUNTED,
    ContainerUsage,
    GrantKind,
    OfDevice,
    ShareGrants,
    check_usage,
)
from partage.values import Frozen, grouped

MOST_ROWS = 2048
"""Containers and jobs of which figures are told. Those that hold no share are left out first."""


class OtherMemory(StrEnum):
    """The place of memory that belongs to no container with a name and to no Slurm job.

    host: processes in no container and no job. mps-server: MPS servers, with what the driver counts for them.
    unnamed: containers that the kubelet has not named. no-process: the rest of what is used on the device:
    the driver itself, managed memory, processes that cannot be seen.
    """

    HOST = "host"
    MPS_SERVER = "mps-server"
    UNNAMED = "unnamed"
    NO_PROCESS = "no-process"


class DeviceUse(Frozen):
    """What a container or job uses of one device.

    used_bytes: None if it is not known. partly: the driver has no figure for some processes, so it is a
    minimum. peak_bytes: the highest of samples one second apart since it began; also of one that ended some
    minutes ago. sm, memory_activity: parts of the whole GPU's time in the last seconds. processes: how many.
    """

    used_bytes: int | None = None
    peak_bytes: int | None = None
    partly: bool = False
    sm: float | None = None
    memory_activity: float | None = None
    processes: int = 0


class ContainerUse(OfDevice):
    """What one container uses and holds of one device.

    share_bytes: memory of its shares there; None: it holds none, or its shares are not known. shares: how
    many. grant: what the ledger says; None for one that ended. resource: of its shares; empty without.
    """

    holder: Holder
    amount: DeviceUse
    grant: GrantKind | None = None
    shares: int = 0
    share_bytes: int | None = None
    guarantee: Guarantee | None = None
    resource: str = ""


class JobUse(OfDevice):
    """What one Slurm job uses of one device."""

    job: str
    amount: DeviceUse


class RestUse(OfDevice):
    """Memory of a device that belongs to nobody with a name."""

    reason: OtherMemory
    used_bytes: int


class NodeUse(Frozen):
    """hidden: why processes may be missing; empty if none is. left_out: containers and jobs beyond
    MOST_ROWS.
    """

    containers: tuple[ContainerUse, ...] = ()
    jobs: tuple[JobUse, ...] = ()
    rest: tuple[RestUse, ...] = ()
    hidden: str = ""
    left_out: int = 0


def usage_of(
    samples: Samples,
    names: Mapping[ContainerId, Holder],
    granted: ShareGrants,
    *,
    holders_known: bool = True,
    counted: Mapping[LimitAt, int] = NOTHING_COUNTED,
) -> NodeUse:
    """All use of the node. names: container id to its names, also of containers that ended lately.
    counted: as ``check_usage`` has it.

    holders_known: False: a container that the ledger does not name may hold a share all the same.
    """
    seen = check_usage(samples.processes, names, granted, {}, counted)
    done = {(activity.gpu, activity.pid): activity for activity in samples.activities}
    containers = [
        container
        if holders_known or container.grant is not GrantKind.NONE
        else replace(container, grant=GrantKind.UNKNOWN)
        for container in _containers(samples, seen.usages, names, granted, done)
    ]
    unnamed = [row for usage in seen.usages if usage.holder is None for row in usage.processes]
    jobs = _jobs(samples, seen.unattributed, done, counted)
    rest = tuple(_rest(samples, seen.unattributed, unnamed))
    kept = sorted(containers, key=lambda use: (not use.shares, use.gpu, use.device, use.holder))[:MOST_ROWS]
    some_jobs = jobs[: MOST_ROWS - len(kept)]
    left_out = len(containers) + len(jobs) - len(kept) - len(some_jobs)
    return NodeUse(tuple(kept), tuple(some_jobs), rest, samples.processes.hidden, left_out)


# --- containers ----------------------------------------------------------------------------------


def _containers(
    samples: Samples,
    usages: Iterable[ContainerUsage],
    names: Mapping[ContainerId, Holder],
    granted: ShareGrants,
    done: Mapping[tuple[GpuUuid, int], ProcessActivity],
) -> list[ContainerUse]:
    found: dict[tuple[DeviceUuid, Holder], ContainerUse] = {}
    for usage in usages:
        if usage.holder is None:
            continue
        amount = _amount(usage.processes, samples, done)
        if usage.counted:
            used = usage.used_bytes
            amount = replace(amount, used_bytes=used, peak_bytes=used, partly=False)
        key = usage.device, usage.holder
        before = found.get(key)
        if before is not None:  # two container ids of one name: the old one has not quite ended
            amount = _sum(before.amount, amount)
        found[key] = ContainerUse(usage.gpu, usage.device, usage.holder, amount, usage.grant)
    for (device, holder), offers in granted.by.items():
        use = found.get((device, holder))
        if use is None:
            idle = DeviceUse() if samples.processes.hidden else _nothing(offers[0].gpu, device, samples)
            use = ContainerUse(offers[0].gpu, device, holder, idle, GrantKind.HELD)
        found[device, holder] = _with_shares(use, offers)
    for peak in samples.peaks:
        named = names.get(peak.container)
        if named is None:
            continue
        use = found.get((peak.device, named)) or ContainerUse(peak.gpu, peak.device, named, DeviceUse())
        found[peak.device, named] = replace(use, amount=_with_peak(use.amount, peak))
    return list(found.values())


def _with_shares(use: ContainerUse, offers: tuple[DeviceOffer, ...]) -> ContainerUse:
    return replace(
        use,
        shares=len(offers),
        share_bytes=sum([offer.memory_bytes for offer in offers]),
        guarantee=weakest([offer.guarantee for offer in offers]),
        resource=offers[0].resource,
    )


def _nothing(gpu: GpuUuid, device: DeviceUuid, samples: Samples) -> DeviceUse:
    """Of a container without processes, where all processes are visible."""
    active = gpu in samples.active and device == gpu
    measured = any(sample.gpu == gpu for sample in samples.gpus)
    if not measured:
        return DeviceUse()  # the GPU does not answer
    return DeviceUse(0, 0, sm=0.0 if active else None, memory_activity=0.0 if active else None)


def _amount(
    rows: Iterable[GpuProcess], samples: Samples, done: Mapping[tuple[GpuUuid, int], ProcessActivity]
) -> DeviceUse:
    rows = tuple(rows)
    known = [row.used_bytes for row in rows if row.used_bytes is not None]
    acts = [done[row.gpu, row.pid] for row in rows if (row.gpu, row.pid) in done]
    measured = any(row.device is None and row.gpu in samples.active for row in rows)
    used = sum(known) if known else None
    return DeviceUse(
        used_bytes=used,
        peak_bytes=used,
        partly=len(known) < len(rows),
        sm=min(1.0, sum([activity.sm for activity in acts])) if measured else None,
        memory_activity=min(1.0, sum([activity.memory for activity in acts])) if measured else None,
        processes=len({row.pid for row in rows}),
    )


def _sum(use: DeviceUse, other: DeviceUse) -> DeviceUse:
    def plus(a: float | None, b: float | None) -> float | None:
        return b if a is None else a if b is None else a + b

    used = plus(use.used_bytes, other.used_bytes)
    return DeviceUse(
        used_bytes=None if used is None else int(used),
        peak_bytes=None if used is None else int(used),
        partly=use.partly or other.partly,
        sm=plus(use.sm, other.sm),
        memory_activity=plus(use.memory_activity, other.memory_activity),
        processes=use.processes + other.processes,
    )


def _with_peak(amount: DeviceUse, peak: OwnerPeak) -> DeviceUse:
    """The highest of what is known. A process without a figure has none of its peak either."""
    if peak.peak_bytes == 0:
        return amount
    return replace(amount, peak_bytes=max(peak.peak_bytes, amount.peak_bytes or 0))


# --- Slurm jobs ----------------------------------------------------------------------------------


def _jobs(
    samples: Samples,
    unattributed: Iterable[GpuProcess],
    done: Mapping[tuple[GpuUuid, int], ProcessActivity],
    counted: Mapping[LimitAt, int],
) -> list[JobUse]:
    rows = grouped(((row.gpu, row.device or row.gpu, job), row) for row in unattributed if (job := _job(row)))
    found = {key: _amount(some, samples, done) for key, some in rows.items()}
    for at, used_bytes in counted.items():
        whole: tuple[GpuUuid, DeviceUuid, str] = at.gpu, at.gpu, at.container
        if whole in found or (used_bytes and is_job(at.container)):
            amount = found.get(whole, DeviceUse())
            found[whole] = replace(amount, used_bytes=used_bytes, peak_bytes=used_bytes, partly=False)
    for peak in samples.peaks:
        if peak.job is not None and not peak.container and not peak.pod:
            key = peak.gpu, peak.device, peak.job.job
            found[key] = _with_peak(found.get(key, DeviceUse()), peak)
    return [JobUse(gpu, device, job, found[gpu, device, job]) for gpu, device, job in sorted(found)]


def _job(row: GpuProcess) -> str:
    """The Slurm job of a process that is in no container; empty where it is of a pod, or of no job."""
    if row.kind is ProcessKind.MPS_SERVER:
        return ""
    owner: Owner = parse_cgroup(row.cgroups)
    return owner.job.job if owner.job and not owner.pod else ""


# --- the rest ------------------------------------------------------------------------------------


def _rest(
    samples: Samples, unattributed: Iterable[GpuProcess], unnamed: Iterable[GpuProcess]
) -> Iterable[RestUse]:
    sums: dict[tuple[GpuUuid, DeviceUuid, OtherMemory], int] = {}

    def add(row: GpuProcess, reason: OtherMemory) -> None:
        key = row.gpu, row.device or row.gpu, reason
        sums[key] = sums.get(key, 0) + (row.used_bytes or 0)

    for row in unattributed:
        if row.kind is ProcessKind.MPS_SERVER:
            add(row, OtherMemory.MPS_SERVER)
        elif not _job(row):
            owner = parse_cgroup(row.cgroups)
            add(row, OtherMemory.UNNAMED if owner else OtherMemory.HOST)
    for row in unnamed:
        add(row, OtherMemory.UNNAMED)
    yield from (
        RestUse(gpu, device, reason, sums[gpu, device, reason]) for gpu, device, reason in sorted(sums)
    )
    yield from _of_no_process(samples)


def _of_no_process(samples: Samples) -> Iterable[RestUse]:
    """What is used beyond all processes, by device; of a GPU in MIG mode, by MIG device."""
    of_processes: dict[DeviceUuid, int] = {}
    for row in samples.processes.rows:
        device = row.device or row.gpu
        of_processes[device] = of_processes.get(device, 0) + (row.used_bytes or 0)
    devices: list[tuple[GpuUuid, DeviceUuid, DeviceMemory | None]] = [
        (mig.gpu, mig.device, mig.memory) for mig in samples.migs
    ]
    with_migs = {mig.gpu for mig in samples.migs}
    whole = [
        (sample.gpu, sample.gpu, sample.memory) for sample in samples.gpus if sample.gpu not in with_migs
    ]
    for gpu, device, memory in (*whole, *devices):
        if memory is not None:
            rest = max(0, memory.used_bytes - of_processes.get(device, 0))
            yield RestUse(gpu, device, OtherMemory.NO_PROCESS, rest)


MINUTES = 60
"""Rows of one GPU at most: what one GPU costs in memory is bounded by it, about 10 KiB."""

N = TypeVar("N", int, float)


class UseMinute(Frozen):
    """The highest figures of the samples of one minute; None: not measured. minute: number of the minute, on
    the clock of the samples. utilisation: as in ``busy_of``.
    """

    minute: int
    utilisation: float | None = None
    memory_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None


LastHour = Mapping[GpuUuid, tuple[UseMinute, ...]]
"""The rows of each GPU, the oldest first, at most one for each minute of the last hour."""


def with_samples(hour: LastHour, samples: Samples, now_s: float) -> LastHour:
    """The hour until ``now_s``, with these samples in it. GPUs without a row any more are left out."""
    minute = int(now_s // 60)
    oldest = minute - MINUTES + 1
    found = {gpu: tuple(row for row in rows if oldest <= row.minute <= minute) for gpu, rows in hour.items()}
    for sample in samples.gpus:
        new = UseMinute(
            minute,
            busy_of(sample, samples),
            None if sample.memory is None else sample.memory.used_bytes,
            sample.temperature_c,
            sample.power_w,
        )
        rows = found.get(sample.gpu, ())
        before = rows[-1] if rows and rows[-1].minute == minute else None
        found[sample.gpu] = (*rows, new) if before is None else (*rows[:-1], _highest(before, new))
    return {gpu: rows for gpu, rows in found.items() if rows}


def busy_of(sample: GpuSample, samples: Samples) -> float | None:
    """The part of the time in which a GPU worked, 0 to 1; None: nobody measures it.

    A GPU in MIG mode has no figure of its own: then it is that of its busiest GPU instance, which Hopper and
    later have.
    """
    if sample.utilisation is not None:
        return sample.utilisation
    instances = (
        mig.activity.graphics
        for mig in samples.migs
        if mig.gpu == sample.gpu and mig.activity is not None and mig.activity.graphics is not None
    )
    return max(instances, default=None)


def _highest(minute: UseMinute, other: UseMinute) -> UseMinute:
    return UseMinute(
        minute.minute,
        _most(minute.utilisation, other.utilisation),
        _most(minute.memory_bytes, other.memory_bytes),
        _most(minute.temperature_c, other.temperature_c),
        _most(minute.power_w, other.power_w),
    )


def _most(one: N | None, other: N | None) -> N | None:
    return other if one is None else one if other is None else max(one, other)

"""Which jobs the driver has to limit, and of which it was seen to. Joins records with cgroups. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from partage.model.driver_limit import DriverLimit, LimitAt, SeenLimit
from partage.model.ids import GpuUuid
from partage.model.share import Guarantee, weakest
from partage.plan.report import JobLimit
from partage.plan.serve.held_limits import read_limit
from partage.plan.serve.ledger_entry import HeldLimit
from partage.slurm.model import GresName, JobId, JobRecord

NOT_BEGUN = "none of its tasks has begun, or slurmd has not loaded partage_limits.so"


def wanted_of_jobs(jobs: Iterable[JobRecord], begun: Collection[JobId]) -> dict[LimitAt, int]:
    """The limit of each job, in bytes. begun: those whose limits the plugin has set: before that nothing can
    be lost, and it would not be late.
    """
    return {
        LimitAt(job.cgroup, limit.gpu): limit.limit_bytes
        for job in jobs
        if job.job in begun
        for limit in job.limits
    }


def counted_of_jobs(jobs: Iterable[JobRecord], gpus: Collection[GpuUuid]) -> frozenset[LimitAt]:
    """Where the memory of jobs is counted that have, or share, these whole GPUs. What clients of MPS use may
    be counted for their server.
    """
    return frozenset(
        LimitAt(job.cgroup, device.gpu)
        for job in jobs
        for device in job.devices
        if device.uuid == device.gpu and device.gpu in gpus and device.gres is not GresName.MPS
    )


def job_limits(
    jobs: Collection[JobRecord],
    begun: Collection[JobId],
    seen: Mapping[LimitAt, SeenLimit],
    late: Collection[LimitAt],
    *,
    unknown: bool,
) -> tuple[JobLimit, ...]:
    """What is said of each job with a limit, by job and GPU. late: limits that were set again. unknown: a job
    has a record that cannot be read, so nobody knows which GPUs it can use.

    Hard only while every job on the GPU was seen to have its limit: one without can use the memory of all.
    """
    read = {
        at: read_limit(limit_bytes, seen[at], late=at in late)
        for at, limit_bytes in wanted_of_jobs(jobs, begun).items()
    }

    def held(job: JobRecord, limit: DriverLimit) -> HeldLimit:
        not_begun = HeldLimit(limit.limit_bytes, None, reason=NOT_BEGUN)
        return read.get(LimitAt(job.cgroup, limit.gpu), not_begun)

    free = {device.gpu for job in jobs for device in job.devices if not (device.limited or job.refused)}
    free |= {limit.gpu for job in jobs for limit in job.limits if not held(job, limit).in_force}
    return tuple(
        JobLimit(
            job=job.job,
            cgroup=job.cgroup,
            user=job.user,
            gpu=limit.gpu,
            guarantee=_said(job, limit.gpu, open_to_others=unknown or limit.gpu in free),
            limit=held(job, limit),
        )
        for job in sorted(jobs, key=lambda job: job.job)
        for limit in job.limits
    )


def _said(job: JobRecord, gpu: GpuUuid, *, open_to_others: bool) -> Guarantee:
    """No more than the job was promised."""
    own = [device for device in job.devices if device.gpu == gpu and device.limited]
    if open_to_others:
        return Guarantee.ADVISORY if all(device.guard for device in own) else Guarantee.NONE
    return weakest([device.guarantee for device in own])

"""Which jobs the driver has to limit, and of which it was seen to. Joins records with cgroups. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from partage.model.driver_limit import NO_CGROUP, DriverLimit, LimitAt, SeenLimit
from partage.model.ids import GpuUuid, JobCgroup
from partage.model.share import Guarantee, weakest
from partage.plan.report import JobLimit
from partage.plan.serve.held_limits import read_limit
from partage.plan.serve.ledger_entry import HeldLimit
from partage.slurm.model import GresName, JobId, JobRecord

NOT_BEGUN = "none of its tasks has begun, or slurmd has not loaded partage_limits.so"


def wanted_of_jobs(jobs: Iterable[JobRecord], begun: Collection[JobId]) -> dict[LimitAt, int]:
    """The limit of each job, in bytes, under each name that its cgroup may have. begun: those whose limits
    the plugin has set for a first step: before that nothing can be lost.
    """
    return {
        LimitAt(cgroup, limit.gpu): limit.limit_bytes
        for job in jobs
        if job.job in begun
        for cgroup in job.cgroups
        for limit in job.limits
    }


def places_of_waiting(jobs: Iterable[JobRecord], begun: Collection[JobId]) -> frozenset[LimitAt]:
    """Where those would be seen to run whose limits the plugin has not set."""
    waiting = [job for job in jobs if job.job not in begun]
    return frozenset(
        LimitAt(cgroup, limit.gpu) for job in waiting for cgroup in job.cgroups for limit in job.limits
    )


def counted_of_jobs(jobs: Iterable[JobRecord], gpus: Collection[GpuUuid]) -> frozenset[LimitAt]:
    """Where the memory of jobs is counted that have, or share, these whole GPUs. What clients of MPS use may
    be counted for their server.
    """
    return frozenset(
        LimitAt(cgroup, device.gpu)
        for job in jobs
        for cgroup in job.cgroups
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

    Hard only while every job on the GPU was seen to have its limit, or no cgroup and so no task: one without
    a limit can use the memory of all.
    """

    def place(job: JobRecord, gpu: GpuUuid) -> LimitAt:
        """Of the names of its cgroup that which is there; else the first."""
        places = [LimitAt(cgroup, gpu) for cgroup in job.cgroups]
        return next((at for at in places if at in seen and seen[at].cgroup), places[0])

    def held(job: JobRecord, limit: DriverLimit) -> HeldLimit:
        at = place(job, limit.gpu)
        if job.job not in begun or at not in seen:
            return HeldLimit(limit.limit_bytes, None, reason=NOT_BEGUN)
        return read_limit(limit.limit_bytes, seen[at], late=at in late)

    def is_free(job: JobRecord, limit: DriverLimit) -> bool:
        places = [LimitAt(cgroup, limit.gpu) for cgroup in job.cgroups]
        rests = all(at in seen and seen[at].why == NO_CGROUP for at in places)
        return not rests and not held(job, limit).in_force

    free = {device.gpu for job in jobs for device in job.devices if not (device.limited or job.refused)}
    free |= {limit.gpu for job in jobs for limit in job.limits if is_free(job, limit)}
    return tuple(
        JobLimit(
            job=job.job,
            cgroup=JobCgroup(place(job, limit.gpu).container),
            user=job.user,
            gpu=limit.gpu,
            guarantee=_said(job, limit.gpu, is_open=unknown or limit.gpu in free or not own.in_force),
            limit=own,
        )
        for job in sorted(jobs, key=lambda job: job.job)
        for limit in job.limits
        for own in (held(job, limit),)
    )


def _said(job: JobRecord, gpu: GpuUuid, *, is_open: bool) -> Guarantee:
    """No more than the job was promised. is_open: its limit, or that of another job there, was not read."""
    own = [device for device in job.devices if device.gpu == gpu and device.limited]
    promised = [device.guarantee for device in own]
    if is_open:
        promised.append(Guarantee.ADVISORY if all(device.guard for device in own) else Guarantee.NONE)
    return weakest(promised)

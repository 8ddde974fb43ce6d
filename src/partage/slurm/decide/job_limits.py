"""Which jobs the driver has to limit, and of which it was seen to. Joins records with cgroups. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from partage.model.driver_limit import DriverLimit, LimitAt, SeenLimit
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

    Hard only while every job on the GPU was seen to have its limit: one without can use the memory of all.
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

    free = {device.gpu for job in jobs for device in job.devices if not (device.limited or job.refused)}
    free |= {limit.gpu for job in jobs for limit in job.limits if not held(job, limit).in_force}
    return tuple(
        JobLimit(
            job=job.job,
            cgroup=JobCgroup(place(job, limit.gpu).container),
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
    promised = [device.guarantee for device in own]
    if open_to_others:
        promised.append(Guarantee.ADVISORY if all(device.guard for device in own) else Guarantee.NONE)
    return weakest(promised)

"""The epilog of a job: what its prolog made is removed. And of jobs whose epilog did not run. Blocking."""

from __future__ import annotations

from collections.abc import Collection

from partage.errors import PartageError
from partage.slurm.agent.job_node import LOCK_S, JobNode
from partage.slurm.decide.job_start import idle_daemons, mps_of
from partage.slurm.host.job_records import JobRecords, Records
from partage.slurm.model import JobId

LOST_JOBS_S = 60.0
"""How often the epilogs of a node ask Slurm which of its jobs live, at most."""


def end_job(node: JobNode, job: JobId) -> tuple[str, ...]:
    """Remove the record of a job, and stop the daemons that no other job needs. May be called again.

    Records of jobs that Slurm does not know any more go, too, once in a while: no epilog removes them, and
    they keep daemons and GPUs from others. Returns what went wrong, as sentences: no failure here is a reason
    to take the node out of service.
    """
    try:
        with JobRecords(node.run_dir) as records:
            wrong = end_jobs(node, records, [job])
            left = records.read()
            if (left.jobs or left.unreadable) and not records.asked_within(LOST_JOBS_S):
                end_lost_jobs(node, records, left)
            return wrong
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (f"{error.filename or node.run_dir / 'jobs'}: {error.strerror or error}",)
    except PartageError as error:
        return (str(error),)


def end_lost_jobs(node: JobNode, records: JobRecords, seen: Records) -> bool:
    """Remove the records of jobs that are not on this node any more, by Slurm's word; whether there were any.

    seen: records that were read before Slurm is asked. One that is another now is of a job that has begun
    since. Raises OSError, PartageError.
    """
    recorded = {job.job for job in seen.jobs} | seen.unreadable.keys()
    living = node.slurm.jobs() if recorded else None
    if living is None or not recorded - living:
        return False
    end_jobs(node, records, recorded - living, seen)
    return True


def end_jobs(
    node: JobNode, records: JobRecords, jobs: Collection[JobId], seen: Records | None = None
) -> tuple[str, ...]:
    """Remove the records of these jobs, and stop the daemons that no other job needs. seen: only where the
    record is still the same. Returns what went wrong. Raises OSError, PartageError.
    """
    with records.locked(LOCK_S):
        found = records.read()
        ended = [job for job in jobs if seen is None or found.same(job, seen)]
        for job in ended:
            records.remove(job)
        left = found.without(*ended)
        if left.unreadable:  # nobody knows which daemons its job needs
            return ()
        devices = {device.uuid for record in found.jobs if record.job in ended for device in mps_of(record)}
        if found.unreadable:
            from partage.slurm.agent.daemons import running_daemons

            devices |= running_daemons(node)
        idle = idle_daemons(devices, left.jobs)
        if not idle:
            return ()
        # A prolog that needs this daemon waits for the records: it starts a new one.
        from partage.slurm.agent.daemons import stop_daemons

        return stop_daemons(node, idle)

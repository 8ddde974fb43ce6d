"""The epilog of a job: what its prolog made is removed. Blocking."""

from __future__ import annotations

from partage.agent.slurm.job_node import LOCK_S, JobNode
from partage.edges.slurm.job_records import JobRecords
from partage.errors import PartageError
from partage.model.slurm_job import JobId
from partage.plan.slurm.job_start import idle_daemons


def end_job(node: JobNode, job: JobId) -> tuple[str, ...]:
    """Remove the record of a job, and stop the daemons that no other job needs. May be called again.

    Returns what went wrong, as sentences: no failure here is a reason to take the node out of service.
    """
    try:
        with JobRecords(node.run_dir) as records, records.locked(LOCK_S):
            record = records.get(job)
            records.remove(job)
            idle = () if record is None else idle_daemons(record, records.all())
            if not idle:
                return ()
            # A prolog that needs this daemon waits for the records: it starts a new one.
            from partage.agent.slurm.daemons import stop_daemons

            return stop_daemons(node, idle)
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (f"{error.filename or node.run_dir / 'jobs'}: {error.strerror or error}",)
    except PartageError as error:
        return (str(error),)

"""``partage explain job``: why a job of Slurm waits, or what it holds."""

from __future__ import annotations

from pathlib import Path

from partage.answers import common_options, common_output
from partage.errors import InputError, Unsatisfiable


def explain_job(name: str, run_dir: str | None, programs: Path | None, output: str) -> int:
    """A job by its number; the exit code. Raises ClusterError, Unsatisfiable, InputError."""
    if not (name.isascii() and name.isdigit() and len(name) < 12):
        raise InputError(
            f"{name[:40]!r} is not the number of a job",
            "a number as in the first column of squeue; for a task of an array: squeue -O JobID,ArrayJobID",
        )
    from partage.explain.decide.job import SlurmNow
    from partage.explain.jobs import job_document
    from partage.slurm.host.control import SlurmControl
    from partage.slurm.host.job_records import read_records
    from partage.slurm.model.job import JobId

    control = SlurmControl(programs)
    now = SlurmNow(control.settings(), control.nodes(), control.queue())
    number = int(name)
    job = next((one for one in now.queue if one.job == number), None)
    if job is None:
        raise Unsatisfiable(
            f"Slurm has no job {number} in its queue: it has ended, or there was none",
            f"sacct -j {number} says how it ended, where accounting is on",
        )
    records = read_records(Path(run_dir or common_options.DEFAULT_RUN_DIR))
    document = job_document(job, now, records.of(JobId(number)))
    if output == "table":
        from partage.explain.job_tables import job_lines

        console = common_output.console()
        for line in job_lines(document):
            console.print(line)
    else:
        common_output.print_document(document, output)
    return 0 if document.standing == "runs" else 1

"""``partage explain job``: why a job of Slurm waits, or what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from partage.answers import common_options, common_output
from partage.errors import InputError, Unsatisfiable
from partage.explain.decide.job import JobVerdict, SlurmNow, explain_job
from partage.explain.document import JobExplanationDocument, JobHoldingRow
from partage.slurm.model import JobDevice, JobRecord, QueuedJob


def answer_job(name: str, run_dir: str | None, programs: Path | None, output: str) -> int:
    """A job by its number; the exit code. Raises ClusterError, Unsatisfiable, InputError."""
    if not (name.isascii() and name.isdigit() and len(name) < 12):
        raise InputError(
            f"{name[:40]!r} is not the number of a job",
            "a number as in the first column of squeue; for a task of an array: squeue -O JobID,ArrayJobID",
        )
    from partage.slurm.host.control import SlurmControl
    from partage.slurm.host.job_records import read_records
    from partage.slurm.model import JobId

    control = SlurmControl(programs)
    now = SlurmNow(control.settings(), control.nodes(), control.queue())
    number = int(name)
    job = next((queued_job for queued_job in now.queue if queued_job.job == number), None)
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


_NOT_NOTED = (
    "what is guaranteed is noted on the node of the job: partage explain job there (the prolog of "
    "deploy/slurm writes it)"
)


def job_document(job: QueuedJob, now: SlurmNow, noted: JobRecord | str | None) -> JobExplanationDocument:
    """The answer. noted: what the prolog of this node has noted of the job; a sentence: why that cannot be
    read."""
    unread, record = (noted, None) if isinstance(noted, str) else (_NOT_NOTED, noted)
    verdict = explain_job(job, now) if job.waits else _started(job, record)
    return JobExplanationDocument(
        job=job.job,
        user=job.user,
        partition=job.partition,
        asks=job.asks or job.asks_in_all,
        standing=verdict.standing,
        why=verdict.why,
        todo=verdict.todo,
        slurm_says=job.reason,
        since=None if job.waits or job.started_s is None else moment(job.started_s),
        nodes=verdict.nodes,
        holds=() if job.waits else tuple(_holds(job, record, unread)),
    )


def moment(seconds: float) -> str:
    """RFC 3339, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _started(job: QueuedJob, record: JobRecord | None) -> JobVerdict:
    if record is not None and record.refused:
        return JobVerdict("refused", record.refused, f"its tasks end with this; submit job {job.job} again")
    where = ", ".join(job.nodes) or "?"
    if not any(job.holds.values()) and record is None:
        return JobVerdict("runs", f"it runs on {where} and holds no GPU", "nothing has to be done")
    return JobVerdict("runs", f"it runs on {where}", "nothing has to be done")


def _holds(job: QueuedJob, record: JobRecord | None, unread: str) -> Iterator[JobHoldingRow]:
    """unread: why a device has no record."""
    noted = {} if record is None else {device.index: device for device in record.devices}
    for node, some in job.holds.items():
        for held in some:
            for index in held.indexes or (None,):
                device = noted.get(index) if index is not None else None
                if device is not None:
                    yield _noted(node, device)
                else:
                    yield JobHoldingRow(node, index, None, None, held.gres, None, None, unread)


def _noted(node: str, device: JobDevice) -> JobHoldingRow:
    gres = f"{device.gres}:{device.units} of {device.units_of}" if device.units else f"gpu:{device.type}"
    return JobHoldingRow(
        node=node,
        index=device.index,
        device=device.name,
        uuid=device.uuid,
        gres=gres,
        memory_bytes=device.memory_bytes,
        guarantee=device.guarantee,
        why=device.guarantee.means,
    )

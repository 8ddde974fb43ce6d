"""``partage slurm prolog``, ``epilog`` and ``task-prolog``: what Slurm's scripts in deploy/slurm call.

They read what slurmd puts into the environment, and few other modules: they run for every job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.answers.common_options import DEFAULT_RUN_DIR
from partage.answers.common_output import say
from partage.answers.verb import verb

if TYPE_CHECKING:
    from partage.slurm.agent.job_node import JobNode
    from partage.slurm.decide.task_answer import TaskAnswer
    from partage.slurm.host.job_records import Records
    from partage.slurm.model import JobId

DEFAULT_DEVICES = "/etc/partage/slurm/devices.json"

_run_dir = click.option(
    "--run-dir",
    metavar="DIR",
    default=DEFAULT_RUN_DIR,
    show_default=True,
    help="Where the records of jobs and the MPS daemons are.",
)
_driver_root = click.option(
    "--driver-root", metavar="DIR", default="/", show_default=True, help="Where the driver is installed."
)


@verb("prolog", short_help="Before a job: record it, start its MPS daemon.")
@_run_dir
@_driver_root
@click.option(
    "--devices",
    metavar="FILE",
    default=DEFAULT_DEVICES,
    show_default=True,
    help="What 'partage slurm config' wrote on this node.",
)
def prolog_command(*, run_dir: str, driver_root: str, devices: str) -> int:
    """Before a job, as root: write its record, start its MPS daemon.

    For Slurm's Prolog: deploy/slurm/prolog calls it. A job that must not run here goes back into the queue;
    where it may not, its tasks are told why. The exit code is 0 then, too. Exit code 4: the node is broken,
    and Slurm drains it with the reason.
    """
    from partage.slurm.agent.job_begin import begin_job, requeue_job
    from partage.slurm.agent.job_node import NodeBroken
    from partage.slurm.decide.job_start import read_request

    node = _node(run_dir, driver_root, devices)
    try:
        request = read_request(os.environ)
    except ValueError as error:  # no reason to take the node out of service: a job could bring it about
        _log(f"warning: this job gets no record, so its tasks end: {error}")
        return 0
    if request is None:
        return 0
    try:
        record = begin_job(node, request)
        requeued = bool(record.refused) and requeue_job(node, record)
    except NodeBroken as error:
        text = " ".join(str(error).split())
        _log(f"error: {text}")
        node.slurm.drain(text)
        return 4
    if record.refused:
        what = "goes back into the queue" if requeued else "is refused"
        _log(f"warning: job {record.job} {what}: {record.refused}")
    return 0


@verb("epilog", short_help="After a job: remove its record, stop its daemon.")
@_run_dir
@_driver_root
def epilog_command(*, run_dir: str, driver_root: str) -> int:
    """After a job, as root: remove its record, stop an MPS daemon that no job needs any more.

    For Slurm's Epilog: deploy/slurm/epilog calls it. The exit code is always 0: what could not be cleaned up
    is printed, and is no reason to take the node out of service.
    """
    from partage.slurm.agent.job_end import end_job
    from partage.slurm.decide.job_start import read_job_id

    try:
        wrong: tuple[str, ...] = end_job(_node(run_dir, driver_root, ""), read_job_id(os.environ))
    except ValueError as error:
        wrong = (str(error),)
    for sentence in wrong:
        _log(f"warning: {sentence}")
    return 0


@verb("task-prolog", short_help="Before a task: print its variables.")
@_run_dir
def task_prolog_command(*, run_dir: str) -> int:
    """Before a task, as the job's user: print its variables, or why the job does not run here.

    For Slurm's TaskProlog: deploy/slurm/task-prolog calls it. Exit code 1: the job is refused, or has GPUs
    without a record; the task fails with the reason in its output.
    """
    from partage.slurm.decide.job_start import read_job_id
    from partage.slurm.host.job_records import JobRecords, Records

    try:
        job = read_job_id(os.environ)
    except ValueError:
        return 0
    try:
        with JobRecords(Path(run_dir)) as records:
            found = records.of_task(job)
            limited = records.limits_held()
    except OSError:
        found, limited = Records(), frozenset()
    answer = _answer(job, found, limited, run_dir.rstrip("/"))
    sys.stdout.write(answer.text())
    return answer.code


def _answer(job: JobId, records: Records, limited: Collection[JobId], run_dir: str) -> TaskAnswer:
    """Of several components on one node, the task belongs to that which has its GPUs. limited: those whose
    memory limits are in force.
    """
    from partage.slurm.decide.task_answer import GPU_VARIABLES, task_answer, unreadable_answer, without_record

    for why in records.unreadable.values():
        return unreadable_answer(why, os.environ, run_dir)
    answers = [
        task_answer(record, os.environ, run_dir, limits_held=record.job in limited) for record in records.jobs
    ]
    if answers:
        return next((answer for answer in answers if not answer.code), answers[0])
    asked = any(os.environ.get(name) for name in GPU_VARIABLES)
    return without_record(_has_gpus(job) if asked else False, os.environ, run_dir)


def _has_gpus(job: JobId) -> bool | None:
    from partage.errors import PartageError
    from partage.slurm.host.programs import SlurmPrograms

    try:
        return SlurmPrograms(os.environ.get("SLURMD_NODENAME", "")).has_gpus(job)
    except PartageError:
        return None


def _log(sentence: str) -> None:
    """To the system's log, too: slurmd keeps little of what a prolog says."""
    import syslog

    say(sentence, err=True)
    syslog.openlog("partage-slurm", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_WARNING, sentence)


def _node(run_dir: str, driver_root: str, devices: str) -> JobNode:
    from partage.slurm.agent.job_node import JobNode
    from partage.slurm.host.programs import SlurmPrograms

    conf = os.environ.get("SLURM_CONF", "")
    return JobNode(
        run_dir=Path(run_dir),
        devices=Path(devices),
        slurm=SlurmPrograms(os.environ.get("SLURMD_NODENAME", "")),
        driver_root=Path(driver_root),
        slurm_conf=Path(conf) if conf else None,
    )

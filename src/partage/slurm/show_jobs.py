"""The Slurm jobs of ``partage show``: asked where Slurm is, or where it is asked for."""

from __future__ import annotations

import pwd
import socket
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from partage.errors import ClusterError, HardwareError, Unsatisfiable
from partage.model.gpu import Inventory
from partage.model.gpu_use import JobProcess, Processes
from partage.slurm.decide.job_processes import job_processes, unrecorded
from partage.slurm.host.control import SlurmControl
from partage.slurm.host.job_records import read_records
from partage.slurm.model import LiveJob
from partage.values import Frozen

_DEADLINE_S = 3.0


class ShownJobs(Frozen):
    """hidden: why some processes may be missing; empty: none is. unreadable: why records of the prolog cannot
    be read; what their jobs hold is what Slurm says of them, or not known."""

    processes: tuple[JobProcess, ...]
    hidden: str = ""
    unreadable: tuple[str, ...] = ()


def is_slurm_node(run_dir: Path) -> bool:
    """Whether Slurm's programs are here, or its prolog has written records."""
    return (run_dir / "jobs").is_dir() or SlurmControl().installed


def shown_jobs(
    inventory: Inventory, ask: Callable[[], Processes], run_dir: Path, node: str | None
) -> ShownJobs | None:
    """Job, user and share of each process. None where the hardware does not say which there are."""
    try:
        found = ask()
    except HardwareError:
        return None
    records = read_records(run_dir)
    live = _live(node) if unrecorded(found.rows, records.jobs) else ()
    rows = job_processes(found.rows, inventory, records.jobs, live)
    unreadable = tuple(records.unreadable.values())
    return ShownJobs(tuple(_with_user(row) for row in rows), found.hidden, unreadable)


def _live(node: str | None) -> tuple[LiveJob, ...]:
    control = SlurmControl(deadline_s=_DEADLINE_S)
    try:
        return control.jobs(node or socket.gethostname().partition(".")[0])
    except (ClusterError, Unsatisfiable):
        return ()


def _with_user(row: JobProcess) -> JobProcess:
    if row.user or row.uid is None:
        return row
    try:
        return replace(row, user=pwd.getpwuid(row.uid).pw_name)
    except KeyError:
        return row

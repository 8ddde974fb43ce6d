"""What squeue and scontrol say of jobs.

Of all jobs, waiting and running: ``squeue --json``, not the text, in which the name of a job may have line
breaks and look like other fields. squeue of 22.05 prints all jobs as JSON, whatever job it is asked for.

Of one job that runs: the text of ``scontrol show job -d``. In it the name of the job, its comment and its
command may look like other fields: what is said twice of a node, and differs, is not believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from partage.slurm.model.job import HeldDevices, JobId
from partage.slurm.model.live import HeldGres, QueuedJob
from partage.slurm.text.answers import (
    detail_of,
    find_held,
    held_devices,
    held_gres,
    hosts_of,
    indexes_of,
    rows_of,
)
from partage.slurm.text.hostlist import in_hostlist

_HERE = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "STOPPED")
_PREFIX = re.compile(r"(?:^|(?<=,))gres[:/]")
_NOT_GRES = re.compile(r"(?:cpu|mem|node|billing|energy|license)[=:]")


def parse_queue(content: str) -> tuple[QueuedJob, ...]:
    """The jobs, by number. Raises CodecError."""
    jobs = [job for row in rows_of(content) if (job := _job(row)) is not None]
    return tuple(sorted(jobs, key=lambda queued_job: queued_job.job))


def _job(row: Mapping[str, Any]) -> QueuedJob | None:
    number, state = row.get("job_id"), _words(row.get("job_state"))
    if not isinstance(number, int) or not any(word in state for word in _HERE):
        return None
    nodes = hosts_of(row.get("nodes"))
    return QueuedJob(
        job=JobId(number),
        state=state,
        reason=_words(row.get("state_reason")).replace("None", ""),
        user=_text(row.get("user_name")),
        partition=_text(row.get("partition")),
        asks=_gres(row.get("tres_per_node")),
        asks_in_all=_gres(row.get("tres_per_job")),
        nodes=tuple(nodes),
        required=tuple(hosts_of(row.get("required_nodes"))),
        begins_s=_number(row.get("eligible_time")),
        started_s=_number(row.get("start_time")),
        dependency=_text(row.get("dependency")),
        holds={} if "PENDING" in state else {node: _held(row, nodes, node) for node in nodes},
    )


def _held(row: Mapping[str, Any], nodes: list[str], node: str) -> tuple[HeldGres, ...]:
    found = detail_of(row.get("gres_detail"), nodes, node) or ()
    return tuple(
        HeldGres(match[1], int(match[3]), held_gres(match), tuple(indexes_of(match))) for match in found
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(value: object) -> str:
    """A word; several since 23.02."""
    return "+".join(map(str, value)) if isinstance(value, list) else _text(value)


def _number(value: object) -> int | None:
    """A number; since 23.02 an object that says whether it is set. 0: it is not known."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _gres(value: object) -> str:
    """``gpu:h100:2`` of ``gres:gpu:h100:2`` and ``gres/gpu:h100=2``."""
    parts = [part for part in _text(value).split(",") if part and not _NOT_GRES.match(part)]
    return ",".join(_PREFIX.sub("", part).replace("=", ":") for part in parts)


_GROUP = re.compile(r"(?<!\w)Nodes=(\S+) CPU_IDs=\S* Mem=\S*(?: GRES=(\S*))?", re.ASCII)
_NAMED = re.compile(r"(\d{1,10})\|(\d{1,10}(?:_\d{1,10})?)(?:\+\d{1,10})?", re.ASCII)
NAMES_FORMAT = "%A|%i"
"""For ``squeue --format``: a job's number, and its name for commands. No user has a word in them."""


def held_on(text: str, node: str) -> HeldDevices | None:
    """What a job holds on a node; None: that is not said, or not clearly."""
    said = {gres for nodes, gres in _GROUP.findall(text) if in_hostlist(node, nodes)}
    return held_devices(find_held(said.pop())) if len(said) == 1 else None


def has_gpus_on(text: str, node: str) -> bool:
    """Whether a job has GPUs or shares of them on a node. Of the first component of a heterogeneous job
    scontrol shows all components. A job whose name says that it has some, has: the name is its owner's.
    """
    return any(find_held(gres) for nodes, gres in _GROUP.findall(text) if in_hostlist(node, nodes))


def parse_job_names(text: str) -> dict[JobId, str] | None:
    """By job, how a command names this job alone, from ``squeue`` with NAMES_FORMAT; None: it is something
    else.

    Of a job array one task has the array's number, which names the whole array in commands: ``7_3`` is the
    task. A heterogeneous job is named by its first component, and commands take it whole.
    """
    found = [_NAMED.fullmatch(word) for word in text.split()]
    if not all(found):
        return None
    return {JobId(int(match[1])): match[2] for match in found if match is not None}

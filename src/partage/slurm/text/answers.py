"""What Slurm's programs print, as values.

Nodes and settings come as text, which all releases print alike, and in which no user of the cluster has a
word. Jobs come as JSON: in the text a job's name may have line breaks, and look like other fields. squeue of
22.05 prints all jobs as JSON, whatever job it is asked for.

Of one job that runs: the text of ``scontrol show job -d``. In it the name of the job, its comment and its
command may look like other fields: what is said twice of a node, and differs, is not believed.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import DecodeError, json

from partage.codec.values import CodecError
from partage.slurm.model import (
    HeldDevices,
    HeldGres,
    JobId,
    LiveJob,
    LiveNode,
    LiveSettings,
    QueuedJob,
    SlurmVersion,
    read_sluid,
)
from partage.slurm.text.hostlist import expand_hostlist, in_hostlist

_WHOLE_LINES = ("Reason", "Comment", "Extra", "OS")
_BY = re.compile(r"\s*\[([^\[\]]*@[^\[\]]*)\]$")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)", re.ASCII)
_HELD = re.compile(r"(gpu|mps|shard)(?::([^:,()]+))?:(\d+)\(([^()]*)\)", re.ASCII)
_ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PENDING",
     "PREEMPTED", "REVOKED", "TIMEOUT")
)  # fmt: skip
JOB_FORMAT = "%A|%T|%U|%u"
"""For ``squeue --format``, where it has no JSON: fields in which a user has no word."""


def parse_node(text: str) -> LiveNode:
    """The answer of ``scontrol show node NAME``, with times in UTC. Raises CodecError."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition("=")
        if key in _WHOLE_LINES:
            fields.setdefault(key, value)
            continue
        for word in line.split():
            name, equal, rest = word.partition("=")
            if equal:
                fields.setdefault(name, rest)
    name, state = fields.get("NodeName", ""), fields.get("State", "")
    if not name or not state:
        raise CodecError(f"this is no answer of 'scontrol show node': {text[:60]!r}")
    away = ["NOT_RESPONDING"] if "*" in state else []
    gres, reason = fields.get("Gres", ""), fields.get("Reason", "")
    features = fields.get("AvailableFeatures", "").replace("(null)", "")
    by = _BY.search(reason)
    return LiveNode(
        name=name,
        flags=frozenset((*re.split(r"[+*$~#%^@!-]+", state.rstrip("*$~#%^@!-").upper()), *away)),
        reason=reason[: by.start()] if by else reason,
        reason_by=by[1] if by else "",
        gres="" if gres == "(null)" else gres,
        version=_version(fields.get("Version", "")),
        started_s=_seconds(fields.get("SlurmdStartTime", "")),
        features=tuple(filter(None, features.split(","))),
    )


def parse_nodes(text: str) -> dict[str, LiveNode]:
    """The answer of ``scontrol show node``, by name. Raises CodecError."""
    blocks = re.split(r"\n(?=NodeName=)", text.strip())
    return {node.name: node for block in blocks if block.strip() for node in (parse_node(block),)}


def _version(text: str) -> SlurmVersion | None:
    try:
        return SlurmVersion.parse(text)
    except ValueError:
        return None


def _seconds(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    return timegm(tuple(int(part) for part in match.groups())) if match else None


def parse_settings(text: str) -> LiveSettings:
    """The answer of ``scontrol show config``, with times in UTC. Raises CodecError."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, equal, value = line.partition("=")
        if equal:
            fields.setdefault(key.strip(), value.strip())
    version = _version(fields.get("SLURM_VERSION", ""))
    if version is None:
        raise CodecError(f"this is no answer of 'scontrol show config': {text[:60]!r}")
    types = fields.get("GresTypes", "(null)")
    return LiveSettings(
        version=version,
        gres_types=() if types == "(null)" else tuple(types.lower().split(",")),
        conf=fields.get("SLURM_CONF", ""),
        differs=fields.get("HASH_VAL", "Match").startswith("Different"),
        spread="multiple_sharing_gres_pj" in fields.get("SelectTypeParameters", "").lower(),
        started_s=_seconds(fields.get("BOOT_TIME", "")),
    )


def parse_jobs(content: str, node: str) -> tuple[LiveJob, ...]:
    """The jobs on a node, by number, from ``squeue --json``. Raises CodecError."""
    jobs = [job for row in rows_of(content) if (job := _job(row, node)) is not None]
    return tuple(sorted(jobs, key=lambda live_job: live_job.job))


def rows_of(content: str) -> list[Mapping[str, Any]]:
    """The jobs of ``squeue --json``. Raises CodecError."""
    try:
        document = json.decode(content)
    except DecodeError as error:
        raise CodecError(f"squeue did not answer with JSON: {error}") from error
    rows = document.get("jobs") if isinstance(document, Mapping) else None
    if not isinstance(rows, list):
        raise CodecError("the answer of squeue has no jobs")
    return [row for row in rows if isinstance(row, Mapping)]


def _job(row: Mapping[str, Any], node: str) -> LiveJob | None:
    number = row.get("job_id")
    states = row.get("job_state", "")
    states = states if isinstance(states, list) else [states]
    if not isinstance(number, int) or (set(states) & _ENDED and "COMPLETING" not in states):
        return None
    nodes = hosts_of(row.get("nodes"))
    if nodes and node not in nodes:
        return None
    user, name, called = row.get("user_id"), row.get("user_name"), row.get("name")
    step = row.get("step_id")
    detail = detail_of(row.get("gres_detail"), nodes, node)
    return LiveJob(
        job=JobId(number),
        state="+".join(str(state) for state in states),
        uid=user if isinstance(user, int) else None,
        user=name if isinstance(name, str) else "",
        gpus=None
        if detail is None
        else tuple(sorted({index for match in detail for index in indexes_of(match)})),
        gres="" if detail is None else ",".join(held_gres(match) for match in detail),
        name=called if isinstance(called, str) else "",
        sluid=read_sluid(step.get("sluid")) if isinstance(step, Mapping) else "",
    )


def hosts_of(value: object) -> list[str]:
    """The names in a list of nodes; none for anything else."""
    try:
        return expand_hostlist(value) if isinstance(value, str) else []
    except ValueError:
        return []


def detail_of(value: object, nodes: list[str], node: str) -> list[re.Match[str]] | None:
    """What a job holds on this node; of all its nodes, where it is not said which is which."""
    if not isinstance(value, list):
        return None
    texts = [str(item) for item in value]
    if len(texts) == len(nodes):
        texts = [texts[nodes.index(node)]]
    return [match for text in texts for match in find_held(text)]


def find_held(gres: str) -> list[re.Match[str]]:
    """The parts of ``gpu:h100:2(IDX:0-1),gpu:h100_shared:0(IDX:)`` of which there is something."""
    return [match for match in _HELD.finditer(gres) if int(match[3])]


def held_devices(found: Iterable[re.Match[str]]) -> HeldDevices | None:
    """What a job has on one node; None: not said how many units of which GPU.

    22.05 has ``shard:2(IDX:2)``, 24.11 ``shard:2(0/0,0/0,2/4)``: what it holds of what there is, GPU by GPU;
    ``mps`` alike.
    """
    indexes: set[int] = set()
    units: dict[int, int] = {}
    for match in found:
        own = list(indexes_of(match))
        indexes |= set(own)
        if match[1] != "gpu":
            parts = match[4].split(",")
            if not match[4].startswith("IDX:"):
                units |= {at: int(parts[at].partition("/")[0]) for at in own}
            elif len(own) == 1:
                units[own[0]] = int(match[3])
            else:
                return None
    return HeldDevices(tuple(sorted(indexes)), units)


def held_in_json(content: str, job: JobId, node: str) -> HeldDevices | None:
    """What a job holds on a node, from ``squeue --json``; None: that is not said. Raises CodecError."""
    for row in rows_of(content):
        if row.get("job_id") == job and node in (nodes := hosts_of(row.get("nodes"))):
            detail = detail_of(row.get("gres_detail"), nodes, node)
            return None if detail is None else held_devices(detail)
    return None


def held_gres(match: re.Match[str]) -> str:
    """``gpu:h100:2``."""
    return ":".join(part for part in (match[1], match[2], match[3]) if part)


def indexes_of(match: re.Match[str]) -> Iterator[int]:
    """``IDX:0-1,3``, or for shares since 23.11 ``25/100,0/100``: those of which it has some."""
    inside = match[4]
    if inside.startswith("IDX:"):
        for part in inside[4:].split(","):
            low, _, high = part.partition("-")
            if low.isdecimal():
                yield from range(int(low), int(high if high.isdecimal() else low) + 1)
        return
    for index, part in enumerate(inside.split(",")):
        used = part.partition("/")[0]
        if used.isdecimal() and int(used):
            yield index


def parse_job_lines(text: str) -> tuple[LiveJob, ...]:
    """The same from ``squeue --format`` with JOB_FORMAT: what the jobs hold is not known."""
    jobs = []
    for line in text.splitlines():
        words = line.split("|")
        if len(words) == 4 and words[0].isdecimal() and words[1] not in _ENDED:
            uid = int(words[2]) if words[2].isdecimal() else None
            jobs.append(LiveJob(JobId(int(words[0])), words[1], uid, words[3]))
    return tuple(sorted(jobs, key=lambda job: job.job))


_HERE = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "STOPPED")
_PREFIX = re.compile(r"(?:^|(?<=,))gres[:/]")
_NOT_GRES = re.compile(r"(?:cpu|mem|node|billing|energy|license)[=:]")


def parse_queue(content: str) -> tuple[QueuedJob, ...]:
    """The jobs, by number. Raises CodecError."""
    jobs = [job for row in rows_of(content) if (job := _queued_job(row)) is not None]
    return tuple(sorted(jobs, key=lambda queued_job: queued_job.job))


def _queued_job(row: Mapping[str, Any]) -> QueuedJob | None:
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

"""What Slurm's programs print, as values.

Nodes and settings come as text, which all releases print alike, and in which no user of the cluster has a
word. Jobs come as JSON: in the text a job's name may have line breaks, and look like other fields.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import DecodeError, json

from partage.codec.values import CodecError
from partage.slurm.model.job import HeldDevices, JobId
from partage.slurm.model.live import LiveJob, LiveNode, LiveSettings
from partage.slurm.model.version import SlurmVersion
from partage.slurm.text.hostlist import expand_hostlist

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

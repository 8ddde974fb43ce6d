"""What a job gets when it starts on a node: its record, with the reason if it must not run here. Pure.

Slurm has chosen the GPUs already. Here they get their names and their guarantees, and what Slurm gives away
twice is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from partage.model.ids import DeviceUuid
from partage.model.mps import DaemonSpec, DaemonState
from partage.model.policy import Strategy
from partage.model.share import Guarantee
from partage.model.slurm import GresName
from partage.model.slurm_devices import NodeDevice, NodeDevices
from partage.model.slurm_job import HeldDevices, JobDevice, JobId, JobRecord
from partage.units import MIB
from partage.values import Frozen

_NUMBER = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}", re.ASCII)

AGAIN = "submit it again"


class JobRequest(Frozen):
    """What slurmd tells the prolog of a job. indexes: of its GPUs. percent: of ``mps``; None: no ``mps``."""

    job: JobId
    uid: int
    indexes: tuple[int, ...]
    user: str = ""
    percent: int | None = None


class NodeFacts(Frozen):
    """What decides besides the job. constrained: Slurm keeps jobs from GPUs that are not theirs, by cgroups.

    guard_dir: where the guard's files are; empty: they could not be written. held: what slurmctld says that
    the job has; None: it was not asked, or does not say.
    """

    constrained: bool = False
    guard_dir: str = ""
    held: HeldDevices | None = None


class JobStart(Frozen):
    """record: with ``refused``, if it must not run. because_of: the jobs on whose account it is refused."""

    record: JobRecord
    because_of: tuple[JobId, ...] = ()


def read_job_id(variables: Mapping[str, str]) -> JobId:
    """SLURM_JOB_ID. Raises ValueError."""
    return JobId(_number(variables, "SLURM_JOB_ID"))


def read_request(variables: Mapping[str, str]) -> JobRequest | None:
    """The job of a prolog, by the variables that slurmd sets; None: it has no GPUs. Raises ValueError."""
    gpus = variables.get("SLURM_JOB_GPUS", "")
    if not gpus:
        return None
    percent = variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")
    user = variables.get("SLURM_JOB_USER", "")
    return JobRequest(
        job=read_job_id(variables),
        uid=_number(variables, "SLURM_JOB_UID"),
        indexes=parse_indexes("SLURM_JOB_GPUS", gpus),
        user=user if _USER.fullmatch(user) else "",
        percent=_percent(percent) if percent else None,
    )


def parse_indexes(name: str, text: str) -> tuple[int, ...]:
    """``0,2`` or ``0-3``, each once. name: of the variable, for the error. Raises ValueError."""
    found: dict[int, None] = {}
    for part in text.split(",") if len(text) < 4096 else [""]:
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{name} is {text[:40]!r}, no list of numbers")
        found |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(found)


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name, "")
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{name} is {text[:40]!r}, no number")
    return int(text)


def _percent(text: str) -> int:
    if _NUMBER.fullmatch(text) is None or not 1 <= int(text) <= 100:
        raise ValueError(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is {text[:40]!r}, no number from 1 to 100")
    return int(text)


def has_to_be_asked(request: JobRequest, node: NodeDevices) -> bool:
    """Whether slurmctld has to be asked what the job has: the prolog's variables do not say how many shards,
    and of a job with GPUs of two types only those of the last one (seen on 22.05.8 and 24.11.5). Nobody has
    ``mps`` and other GPUs.
    """
    if request.percent is not None:
        return False
    rest = [one for one in node.devices if one.index not in request.indexes]
    own = [one for one in node.devices if one.index in request.indexes]
    several = len({one.type for one in node.devices}) > 1
    return any(one.shares is GresName.SHARD for one in own) or (several and bool(rest))


def start_job(
    request: JobRequest, node: NodeDevices, facts: NodeFacts, others: Iterable[JobRecord]
) -> JobStart:
    """The record of a job that starts. others: the records of the other jobs on this node.

    Raises ValueError if the node's devices are not those that slurmd knows.
    """
    indexes = dict.fromkeys((*request.indexes, *(facts.held.indexes if facts.held else ())))
    devices = tuple(_job_device(request, node, at, facts) for at in sorted(indexes))
    guard_dir = facts.guard_dir if any(one.guard for one in devices) else ""
    record = JobRecord(request.job, request.uid, devices, request.user, guard_dir=guard_dir)
    conflicts = [
        (other.job, said)
        for other in others
        if other.job != request.job and not other.refused
        for said in _conflicts(devices, other)
    ]
    overfull = list(_overfull(record, others))
    if not conflicts and not overfull:
        return JobStart(record)
    jobs = tuple(dict.fromkeys([job for job, _ in conflicts] + [job for job, _ in overfull]))
    _, said = (conflicts or overfull)[0]
    refused = f"{said}. Slurm {node.slurm} gave it away twice; {AGAIN}"
    return JobStart(replace(record, refused=refused), jobs)


# --- its devices ------------------------------------------------------------------------------


def _job_device(request: JobRequest, node: NodeDevices, at: int, facts: NodeFacts) -> JobDevice:
    if at >= len(node.devices):
        raise ValueError(
            f"slurmd gives a job GPU {at}, and devices.json has {len(node.devices)}: write it again with "
            "gres.conf"
        )
    device = node.devices[at]
    if request.percent is not None and device.shares is not GresName.MPS:
        raise ValueError(
            f"slurmd gives a job mps of GPU {at}, which devices.json does not share so: write it again with "
            "gres.conf"
        )
    units = _units(request, device, facts)
    memory = device.memory_bytes * units // device.units // MIB * MIB if units else device.memory_bytes
    gres = device.shares if units and device.shares else GresName.GPU
    split = units or device.strategy is Strategy.MIG
    return JobDevice(
        index=device.index,
        name=device.name,
        uuid=device.uuid,
        gpu=device.gpu,
        type=device.type,
        strategy=device.strategy if split else Strategy.EXCLUSIVE,
        gres=gres,
        memory_bytes=memory,
        total_bytes=device.memory_bytes,
        guarantee=_guarantee(device, facts, shared=units > 0),
        units=units,
        units_of=device.units if units else 0,
        guard=units > 0 and device.guard and bool(facts.guard_dir),
    )


def _units(request: JobRequest, device: NodeDevice, facts: NodeFacts) -> int:
    if device.shares is GresName.MPS:
        return request.percent or 0
    if device.shares is GresName.SHARD:
        held = 1 if facts.held is None else facts.held.shards.get(device.index, 0)
        return min(held, device.units)
    return 0


def _guarantee(device: NodeDevice, facts: NodeFacts, *, shared: bool) -> Guarantee:
    """An MPS share is held by variables that a job can drop; so is a whole GPU without cgroups."""
    if not shared:
        hard = device.guarantee is Guarantee.HARD and not facts.constrained
        return Guarantee.ADVISORY if hard else device.guarantee
    if device.shares is GresName.MPS:
        return Guarantee.ADVISORY
    return Guarantee.ADVISORY if device.guard and facts.guard_dir else Guarantee.NONE


# --- what cannot be ---------------------------------------------------------------------------


def _conflicts(devices: Iterable[JobDevice], other: JobRecord) -> Iterator[str]:
    """Why these devices and those of another job exclude each other."""
    for mine in devices:
        for theirs in other.devices:
            if mine.uuid == theirs.uuid and not (mine.units and theirs.units):
                whole = "all of it" if not theirs.units else f"{theirs.gres}:{theirs.units} of it"
                yield f"GPU {mine.name} is not free: job {other.job} has {whole}"
            elif mine.uuid != theirs.uuid and mine.gpu == theirs.gpu in (mine.uuid, theirs.uuid):
                yield f"GPU {mine.name} is not free: job {other.job} has {theirs.name} of it"


def _overfull(record: JobRecord, others: Iterable[JobRecord]) -> Iterator[tuple[JobId, str]]:
    held = [one for one in others if one.job != record.job and not one.refused]
    for mine in record.devices:
        users = {
            other.job: theirs.units
            for other in held
            for theirs in other.devices
            if theirs.uuid == mine.uuid and theirs.units and mine.units
        }
        if sum(users.values()) + mine.units > mine.units_of > 0:
            left = max(0, mine.units_of - sum(users.values()))
            for job in users:
                yield job, f"GPU {mine.name} has {left} of {mine.units_of} {mine.gres} left, not {mine.units}"


# --- MPS --------------------------------------------------------------------------------------


def daemons_of(record: JobRecord, node: NodeDevices) -> tuple[DaemonSpec, ...]:
    """The MPS daemons that a job needs: one for each device, for all jobs with a share of it.

    Without limits of its own: shares are unequal, and each job's limits are in its variables.
    """
    if record.refused:
        return ()
    users = {one.uuid: one.multi_user for one in node.devices}
    return tuple(
        DaemonSpec(one.gpu, one.uuid, multi_user=users.get(one.uuid))
        for one in record.devices
        if one.gres is GresName.MPS
    )


def unwanted_daemons(record: JobRecord, node: NodeDevices) -> tuple[DeviceUuid, ...]:
    """The devices that a job has alone and on which an MPS daemon may run: one that no epilog has ended, or
    one of ``partage apply``. The job's programs do not ask it, and it may hold the GPU.
    """
    if record.refused:
        return ()
    shared = {one.uuid for one in node.devices if one.shares is GresName.MPS}
    return tuple(one.uuid for one in record.devices if not one.units and one.uuid in shared)


def with_other_users(record: JobRecord, daemon: DaemonState, others: Sequence[JobRecord]) -> JobRecord:
    """The record, refused if jobs of another user hold a daemon that serves one user at a time.

    A client of the second user would wait, without a word, until the last one of the first has ended.
    """
    if daemon.multi_user or record.refused:
        return record
    foreign = [
        other.job
        for other in others
        if other.uid != record.uid and not other.refused and _has(other, daemon.device)
    ]
    if not foreign:
        return record
    name = next((one.name for one in record.devices if one.uuid == daemon.device), "")
    return replace(
        record,
        refused=f"GPU {name} is shared by MPS, its driver serves one user at a time, and job {foreign[0]} is "
        f"another user's; {AGAIN} when that has ended",
    )


def idle_daemons(ended: JobRecord, others: Iterable[JobRecord]) -> tuple[DeviceUuid, ...]:
    """The devices whose MPS daemon nobody needs any more, once a job has ended."""
    rest = tuple(others)
    return tuple(
        one.uuid
        for one in ended.devices
        if one.gres is GresName.MPS and not any(_has(other, one.uuid) for other in rest)
    )


def _has(record: JobRecord, device: DeviceUuid) -> bool:
    return any(one.uuid == device for one in record.devices)

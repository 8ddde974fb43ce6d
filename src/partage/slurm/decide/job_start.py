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
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.slurm.model import (
    GresName,
    HeldDevices,
    JobDevice,
    JobId,
    JobOfUser,
    JobRecord,
    NodeDevice,
    NodeDevices,
    read_sluid,
)
from partage.units import MIB
from partage.values import Frozen

_NUMBER = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}", re.ASCII)
_PERCENT, _LEADER = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "SLURM_HET_JOB_ID"
NOT_SAID = "Slurm does not say clearly which GPUs it has"


class JobRequest(JobOfUser):
    """What slurmd tells the prolog of a job. indexes: of its GPUs. percent: of ``mps``; None: no ``mps``.
    leader: of a component of a heterogeneous job. sluid: as in ``JobRecord``.
    """

    indexes: tuple[int, ...]
    user: str = ""
    percent: int | None = None
    leader: JobId | None = None
    sluid: str = ""


class NodeFacts(Frozen):
    """What decides besides the job. constrained: Slurm keeps jobs from GPUs that are not theirs, by cgroups.

    guard_dir: where the guard's files are; empty: they could not be written. held: what slurmctld says that
    the job has; None: it was not asked, or does not say. silent: why it did not answer. limits: slurmd loads
    our plugin, which sets memory limits of the driver's.
    """

    constrained: bool = False
    guard_dir: str = ""
    held: HeldDevices | None = None
    silent: str = ""
    limits: bool = False


def read_job_id(variables: Mapping[str, str]) -> JobId:
    """SLURM_JOB_ID. Raises ValueError."""
    return JobId(_number(variables, "SLURM_JOB_ID"))


def read_request(variables: Mapping[str, str]) -> JobRequest | None:
    """The job of a prolog, by the variables that slurmd sets; None: it has no GPUs. Raises ValueError."""
    gpus = variables.get("SLURM_JOB_GPUS", "")
    if not gpus:
        return None
    percent = variables.get(_PERCENT, "")
    user = variables.get("SLURM_JOB_USER", "")
    leader = variables.get(_LEADER, "")
    return JobRequest(
        job=read_job_id(variables),
        uid=_number(variables, "SLURM_JOB_UID"),
        indexes=parse_indexes("SLURM_JOB_GPUS", gpus),
        user=user if _USER.fullmatch(user) else "",
        percent=_number(variables, _PERCENT) if percent else None,
        leader=JobId(_number(variables, _LEADER)) if leader else None,
        sluid=read_sluid(variables.get("SLURM_JOB_SLUID")),
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


def has_to_be_asked(request: JobRequest, node: NodeDevices) -> bool:
    """Whether slurmctld has to be asked what the job has: the prolog's variables do not say how many shards,
    and of a job with GPUs of two types only those of the last one (seen on 22.05.8 and 24.11.5). Nobody has
    ``mps`` and other GPUs; of several GPUs the percentage is the sum, of 100 each, and with ``--exclusive``
    it is 0 or that of all (24.11.5).
    """
    if request.percent is not None:
        return len(request.indexes) > 1 or not 1 <= request.percent <= 100
    rest = [device for device in node.devices if device.index not in request.indexes]
    own = [device for device in node.devices if device.index in request.indexes]
    several = len({device.type for device in node.devices}) > 1
    return any(device.shares is GresName.SHARD for device in own) or (several and bool(rest))


def start_job(
    request: JobRequest, node: NodeDevices, facts: NodeFacts, others: Iterable[JobRecord]
) -> JobRecord:
    """The record of a job that starts, with ``refused`` if it must not run. others: the records of the other
    jobs on this node.

    Raises ValueError if the node's devices are not those that slurmd knows.
    """
    record = JobRecord(request.job, request.uid, (), request.user, leader=request.leader, sluid=request.sluid)
    if facts.held is None and has_to_be_asked(request, node):
        return replace(record, refused=facts.silent or NOT_SAID)
    indexes = request.indexes if facts.held is None else facts.held.indexes
    held = [other for other in others if other.job != request.job and not other.refused]
    devices = tuple(_beside(_job_device(request, node, at, facts), held) for at in sorted(indexes))
    guard_dir = facts.guard_dir if any(device.guard for device in devices) else ""
    record = replace(record, devices=devices, guard_dir=guard_dir)
    conflicts = (said for other in held for said in _conflicts(devices, other))
    text = next(conflicts, "") or next(_overfull(record, held), "")
    return replace(record, refused=f"{text}. Slurm {node.slurm} gave it away twice") if text else record


# --- its devices ------------------------------------------------------------------------------


def _job_device(request: JobRequest, node: NodeDevices, at: int, facts: NodeFacts) -> JobDevice:
    if at >= len(node.devices):
        raise ValueError(
            f"slurmd gives a job GPU {at}, and devices.json has {len(node.devices)}: write it again with "
            "gres.conf"
        )
    device = node.devices[at]
    units = _units(request, device, facts)
    memory = device.memory_bytes * units // device.units // MIB * MIB if units else device.memory_bytes
    gres = device.shares if units and device.shares else GresName.GPU
    split = units or device.strategy.traits.in_devices
    limited = device.limited and facts.limits and units > 0
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
        guarantee=_guarantee(device, facts, shared=units > 0, limited=limited),
        units=units,
        units_of=device.units if units else 0,
        guard=units > 0 and device.guard and bool(facts.guard_dir),
        limited=limited,
        limits_nest=limited and device.limits_nest,
    )


def _beside(device: JobDevice, held: Iterable[JobRecord]) -> JobDevice:
    """A job without a limit can use the memory of all."""
    free = any(
        theirs.uuid == device.uuid and not theirs.limited for other in held for theirs in other.devices
    )
    return replace(device, guarantee=Guarantee.NONE) if device.limited and free else device


def _units(request: JobRequest, device: NodeDevice, facts: NodeFacts) -> int:
    """How many of ``mps`` or ``shard`` the job has of a device. Raises ValueError for one that has none."""
    units = facts.held.units.get(device.index, 0) if facts.held is not None else request.percent or 0
    share = device.shares if request.percent is None else GresName.MPS
    if units and (share is None or device.shares is not share):
        raise ValueError(
            f"slurmd gives a job {share or 'shares'} of GPU {device.index}, which devices.json does not "
            "share so: write it again with gres.conf"
        )
    return min(units, device.units)


def _guarantee(device: NodeDevice, facts: NodeFacts, *, shared: bool, limited: bool) -> Guarantee:
    """An MPS share is held by variables that a job can drop; so is a whole GPU without cgroups. Without them
    jobs that have no limit can use a GPU of others, too.
    """
    if not shared:
        hard = device.guarantee is Guarantee.HARD and not facts.constrained
        return Guarantee.ADVISORY if hard else device.guarantee
    if device.shares is GresName.MPS:
        return Guarantee.ADVISORY
    if limited and facts.constrained:
        return Guarantee.HARD
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


def _overfull(record: JobRecord, held: Sequence[JobRecord]) -> Iterator[str]:
    """Of which devices all have more than there is."""
    for mine in record.devices:
        used = sum(theirs.units for other in held for theirs in other.devices if theirs.uuid == mine.uuid)
        if used and used + mine.units > mine.units_of > 0:
            left = max(0, mine.units_of - used)
            yield f"GPU {mine.name} has {left} of {mine.units_of} {mine.gres} left, not {mine.units}"


# --- MPS --------------------------------------------------------------------------------------


def daemons_of(record: JobRecord, node: NodeDevices) -> tuple[DaemonSpec, ...]:
    """The MPS daemons that a job needs: one for each device, for all jobs with a share of it.

    Without limits of its own: shares are unequal, and each job's limits are in its variables.
    """
    if record.refused:
        return ()
    users = {device.uuid: device.multi_user for device in node.devices}
    return tuple(
        DaemonSpec(device.gpu, device.uuid, multi_user=users.get(device.uuid)) for device in mps_of(record)
    )


def unwanted_daemons(record: JobRecord, node: NodeDevices) -> tuple[DeviceUuid, ...]:
    """The devices that a job has alone and on which an MPS daemon may run: one that no epilog has ended, or
    one of ``partage apply``. The job's programs do not ask it, and it may hold the GPU.
    """
    if record.refused:
        return ()
    shared = {device.uuid for device in node.devices if device.shares is GresName.MPS}
    return tuple(device.uuid for device in record.devices if not device.units and device.uuid in shared)


def with_other_users(record: JobRecord, daemon: DaemonState, others: Sequence[JobRecord]) -> JobRecord:
    """The record, refused if jobs of another user hold a daemon that serves one user at a time.

    A client of the second user would wait, without a word, until the last one of the first has ended. A job
    that is not decided yet holds no daemon: it may be refused itself, for the same reason.
    """
    if daemon.multi_user or record.refused:
        return record
    foreign = [
        other.job
        for other in others
        if other.uid != record.uid and other.decided and not other.refused and _has(other, daemon.device)
    ]
    if not foreign:
        return record
    name = next((device.name for device in record.devices if device.uuid == daemon.device), "")
    return replace(
        record,
        refused=f"GPU {name} is shared by MPS, its driver serves one user at a time, and job {foreign[0]} is "
        "another user's",
    )


def mps_of(record: JobRecord) -> tuple[JobDevice, ...]:
    """The devices of which a job has a share by MPS."""
    return tuple(device for device in record.devices if device.gres is GresName.MPS)


def idle_daemons(devices: Iterable[DeviceUuid], left: Iterable[JobRecord]) -> tuple[DeviceUuid, ...]:
    """Those of the devices whose MPS daemon no job needs that is left. A refused job needs none, nor does one
    with all of the GPU.
    """
    needed = {device.uuid for record in left if not record.refused for device in mps_of(record)}
    return tuple(sorted(set(devices) - needed))


def _has(record: JobRecord, device: DeviceUuid) -> bool:
    return any(job_device.uuid == device for job_device in record.devices)

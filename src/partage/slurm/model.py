"""Values of Slurm: its version, its generic resources (GRES) and devices, jobs, and what Slurm says.

The prolog writes one record for each job with GPUs, ``<run-dir>/jobs/<job id>.json``; the epilog removes it.
What stands behind each index of SLURM_JOB_GPUS is ``devices.json``, which the prolog reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NewType

from msgspec import field

from partage.model.driver_limit import DriverLimit
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, JobCgroup
from partage.model.share import Guarantee, driver_limits
from partage.model.strategy import Strategy
from partage.values import Frozen

_VERSION = re.compile(r"(?:slurm(?:-wlm)?[ -])?(\d{2})[.-](\d{2})(?:[.-](\d{1,3}))?(?:[-+~.]\S*)?", re.ASCII)


class SlurmVersion(Frozen, order=True):
    """``24.11.5``. A release without its last number is taken as the first of its line: 23.02 as 23.02.0."""

    year: int
    month: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> SlurmVersion:
        """The version in ``24.11``, ``22.05.8-4+deb12u3``, ``slurm 23.11.4``. Raises ValueError."""
        match = _VERSION.fullmatch(text.strip()) if len(text) < 64 else None
        if match is None:
            raise ValueError(f"{text[:40]!r} is not a version of Slurm such as 22.05.8 or 24.11")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    def __str__(self) -> str:
        return f"{self.year:02}.{self.month:02}.{self.patch}"


class GresName(StrEnum):
    """The three GRES that concern GPUs. A unit of ``mps`` is one percent of a GPU, of ``shard`` a share."""

    GPU = "gpu"
    MPS = "mps"
    SHARD = "shard"


class GresFiles(Frozen, kw_only=True):
    """What a line of gres.conf says of its GRES, whichever it is. type: only of ``gpu``. count: None: as many
    as there are files. files: device files of the node. multiple: all files are one GRES (``MultipleFiles``,
    MIG).
    """

    type: str = ""
    count: int | None = None
    files: tuple[str, ...] = ()
    multiple: bool = False
    flags: tuple[str, ...] = ()


class GresRecord(GresFiles):
    """One line of gres.conf as it is written. remark: comment above the line."""

    name: GresName
    remark: str = ""


class GresIndex(Frozen):
    """A GPU or a MIG device, as a GRES ``gpu``. index: what Slurm calls it: its place in the node's list, as
    in SLURM_JOB_GPUS; not its NVML index. name: NVML's, ``3`` or ``3:1``. uuid: of the device.
    """

    index: int
    name: str
    uuid: DeviceUuid


class SlurmDevice(GresIndex):
    """A device of a node, for gres.conf.

    shares: ``mps`` or ``shard``, None for a device that is not shared; units: how many of them it has.
    replicas: shares that the policy asks for. ask: how many shards a job asks for, in words.
    """

    type: str
    files: tuple[str, ...]
    shares: GresName | None = None
    units: int = 0
    replicas: int = 1
    ask: str = "1"


class NodeGres(Frozen):
    """What Slurm is told of one node.

    devices: in Slurm's order. records: the lines of gres.conf. counts: ``Gres=`` of slurm.conf, (name, type)
    to count; the order of types is that of the lines. absent: GPUs that are left out, one sentence for each.
    """

    devices: tuple[SlurmDevice, ...] = ()
    records: tuple[GresRecord, ...] = ()
    counts: Mapping[tuple[GresName, str], int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class SlurmNode(Frozen):
    """A node by its name in Slurm. settings: the rest of its line, ``CPUs=64 RealMemory=1000000``."""

    name: str
    gres: NodeGres
    settings: str = ""


class SlurmConfig(Frozen):
    """A cluster's configuration of GPUs, for one version. gres_types: ``GresTypes``.

    constrained_files: device files that every job may use, for versions that need a list of them.
    """

    version: SlurmVersion
    nodes: tuple[SlurmNode, ...]
    gres_types: tuple[GresName, ...]
    constrained_files: tuple[str, ...] = ()


WRITTEN_BY = "partage slurm config"


class GresDevice(GresIndex, kw_only=True):
    """A device of a node or of a job.

    gpu: the GPU that it is, or is part of. units: of ``mps`` or ``shard``. limited: the driver is to hold
    jobs with a share to their memory. limits_nest: an inner limit adds to one further out.
    """

    gpu: GpuUuid
    type: str
    strategy: Strategy
    memory_bytes: int
    guarantee: Guarantee
    units: int = 0
    guard: bool = False
    limited: bool = False
    limits_nest: bool = False


class NodeDevice(GresDevice, kw_only=True):
    """A GRES ``gpu`` of a node. strategy: of its GPU, as in ``DeviceOffer``.

    shares: ``mps`` or ``shard``; None: it is not shared. units: how many it has. guarantee: what a job is
    guaranteed that has all of it. guard: whether jobs with a share get the guard.
    multi_user: one MPS server for all users; None: if the control program can do it.
    """

    shares: GresName | None = None
    multi_user: bool | None = None


class NodeDevices(Frozen, kw_only=True):
    """The devices of one node, in Slurm's order: that of its lines in gres.conf. slurm: the release that
    gres.conf was written for.
    """

    written_by: str = WRITTEN_BY
    version: int = 1
    node: str
    slurm: SlurmVersion
    devices: tuple[NodeDevice, ...] = ()


JobId = NewType("JobId", int)
"""Slurm's number of a job, SLURM_JOB_ID. Each task of a job array has one of its own."""

_SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}", re.ASCII)

RECORD_VERSION = 1


class HeldDevices(Frozen):
    """What slurmctld says that a job has on a node. indexes: Slurm's, of its GPUs, those too of which it has
    a share. units: of ``mps`` or ``shard``, by index.
    """

    indexes: tuple[int, ...] = ()
    units: Mapping[int, int] = field(default_factory=dict)


class JobDevice(GresDevice, kw_only=True):
    """A GPU or a MIG device that a job has, whole or a share of it. strategy: ``exclusive`` for a whole GPU,
    also one that the policy shares.

    gres: what the job holds of it. units: 0: the device is the job's alone. units_of: so many units has the
    device. memory_bytes: what the job may use; total_bytes: what there is. guard: its programs get the guard.
    limited: the guarantee is that of the driver's limit; without it there is none.
    """

    gres: GresName
    total_bytes: int
    units_of: int = 0


class JobOfUser(Frozen):
    """uid: of its owner."""

    job: JobId
    uid: int


class JobRecord(JobOfUser):
    """What the prolog knows of a job. user: the owner's name; empty if it is not known.

    refused: why the job must not run here, a sentence that its owner reads; empty: it may. guard_dir: where
    the guard's files are; empty: it gets none. leader: the first component of a heterogeneous job, if this is
    one of its components: the tasks of all components are told the leader's number as SLURM_JOB_ID, while
    their prologs have their own (seen on 22.05.8, 24.11.5 and 26.05.5). None: it is a plain job. decided:
    False while its prolog starts MPS daemons, and may still refuse it. sluid: Slurm's other name of it, since
    25.11; empty: it has none.
    """

    devices: tuple[JobDevice, ...]
    user: str = ""
    refused: str = ""
    guard_dir: str = ""
    leader: JobId | None = None
    decided: bool = True
    version: int = RECORD_VERSION
    sluid: str = ""

    @property
    def gres(self) -> str:
        """What it has, as a request: ``mps:25``, ``gpu:h100:2``."""
        return as_request(self.devices)

    @property
    def cgroups(self) -> tuple[JobCgroup, ...]:
        """What its cgroup may be called by."""
        return job_cgroups(self.job, self.sluid)

    @property
    def limits(self) -> tuple[DriverLimit, ...]:
        """The driver's memory limits that it has to have, one for each GPU; none where it must not run."""
        limited = (device for device in self.devices if device.limited and not self.refused)
        return driver_limits((device.gpu, device.memory_bytes) for device in limited)


def job_cgroups(job: JobId, sluid: str) -> tuple[JobCgroup, ...]:
    """What the cgroup of a job may be called by: its number, and its SLUID if it has one. 25.11 has SLUIDs,
    and calls cgroups by the number; 26.05 calls those of version 2 by the SLUID, unless
    ``CgroupJobIdPaths=yes`` (xcgroup.c and cgroup_v2.c of these releases).
    """
    return tuple(JobCgroup(ContainerId(name)) for name in (sluid, str(job)) if name)


def read_sluid(value: object) -> str:
    """A SLUID; empty for anything else."""
    return value if isinstance(value, str) and _SLUID.fullmatch(value) else ""


def as_request(devices: Iterable[JobDevice]) -> str:
    """What a job with these devices asked for: ``mps:25``, ``gpu:h100:2``."""
    counts: dict[str, int] = {}
    for device in devices:
        key = device.gres.value if device.units else f"gpu:{device.type}"
        counts[key] = counts.get(key, 0) + (device.units or 1)
    return ",".join(f"{name}:{count}" for name, count in counts.items())


_DRAIN = frozenset(("DRAIN", "DRAINED", "DRAINING"))
_INVALID = frozenset(("INVAL", "INVALID_REG"))
_AWAY = frozenset(("NOT_RESPONDING", "FUTURE", "POWERED_DOWN", "POWER_DOWN"))
_AWAY_UNLESS_INVALID = frozenset(("DOWN", "UNKNOWN"))
"""A slurmd that registers with less than slurm.conf says does not change these. UNKNOWN is how slurmctld
starts: ``UNKNOWN+DRAIN+INVALID_REG`` (seen on 22.05.8, 24.11.5 and 26.05.5)."""


class LiveNode(Frozen):
    """A node as slurmctld knows it. flags: of its state, ``MIXED``, ``DRAIN``. gres: as in ``Gres=``.

    reason_by: who gave the reason, and when: ``root@2026-11-22T19:39:47``. started_s: when slurmd was
    started, or has read its files anew since 23.11 (seconds since 1970); None: it has not registered.
    features: for ``--constraint``.
    """

    name: str
    flags: frozenset[str]
    reason: str = ""
    reason_by: str = ""
    gres: str = ""
    version: SlurmVersion | None = None
    started_s: int | None = None
    features: tuple[str, ...] = ()

    @property
    def drained(self) -> bool:
        """It gets no new jobs; those that run may go on."""
        return bool(self.flags & _DRAIN)

    @property
    def invalid(self) -> bool:
        """Slurmd has registered with less than slurm.conf says."""
        return bool(self.flags & _INVALID)

    @property
    def away(self) -> bool:
        """Slurmd does not answer slurmctld. A node that is invalid has registered, and is not pinged."""
        return bool(self.flags & _AWAY) or (bool(self.flags & _AWAY_UNLESS_INVALID) and not self.invalid)


class LiveJob(Frozen):
    """A job on a node. gpus: Slurm's indexes of its GPUs, as in SLURM_JOB_GPUS; None: not known.

    gres: what it holds, ``gpu:h100:2`` or ``mps:25``. name: what its owner calls it; empty: not known. sluid:
    as in ``JobRecord``.
    """

    job: JobId
    state: str
    uid: int | None = None
    user: str = ""
    gpus: tuple[int, ...] | None = None
    gres: str = ""
    name: str = ""
    sluid: str = ""

    @property
    def cgroups(self) -> tuple[JobCgroup, ...]:
        """What its cgroup may be called by."""
        return job_cgroups(self.job, self.sluid)

    @property
    def holds_gpus(self) -> bool:
        """Whether it has GPUs, or may have."""
        return self.gpus is None or bool(self.gpus) or bool(self.gres)


class HeldGres(Frozen):
    """What a job holds on a node. gres: ``gpu:h100:2``, ``mps:25``. indexes: Slurm's, of the GPUs."""

    name: str
    count: int
    gres: str
    indexes: tuple[int, ...]


class QueuedJob(Frozen):
    """A job in the queue, waiting or running.

    reason: Slurm's word why it waits, ``Resources``. asks: per node, ``gpu:h100:2,mps:25``; asks_in_all: for
    the whole job; both as in ``--gres``. nodes: where it runs; required: where it has to. begins_s,
    started_s: seconds since 1970; None: not said. holds: node to what it holds there.
    """

    job: JobId
    state: str
    reason: str = ""
    user: str = ""
    partition: str = ""
    asks: str = ""
    asks_in_all: str = ""
    nodes: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    begins_s: int | None = None
    started_s: int | None = None
    dependency: str = ""
    holds: Mapping[str, tuple[HeldGres, ...]] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """It has not started."""
        return "PENDING" in self.state


class LiveSettings(Frozen):
    """Settings of a running Slurm. conf: the path of slurm.conf. differs: this host has another slurm.conf
    than slurmctld. spread: a job may have shares of several GPUs (MULTIPLE_SHARING_GRES_PJ). started_s: when
    slurmctld was started, or has read its files anew since 23.11 (seconds since 1970); None: not said.
    """

    version: SlurmVersion
    gres_types: tuple[str, ...]
    conf: str = ""
    differs: bool = False
    spread: bool = False
    started_s: int | None = None

"""A job of Slurm on this node: which GPUs it has, and what is guaranteed about them.

The prolog writes one record for each job with GPUs, ``<run-dir>/jobs/<job id>.json``; the epilog removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NewType

from msgspec import field

from partage.slurm.model.devices import GresDevice
from partage.slurm.model.version import GresName
from partage.values import Frozen

JobId = NewType("JobId", int)
"""Slurm's number of a job, SLURM_JOB_ID. Each task of a job array has one of its own."""

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


class JobRecord(Frozen):
    """What the prolog knows of a job. uid: of its owner. user: the owner's name; empty if it is not known.

    refused: why the job must not run here, a sentence that its owner reads; empty: it may. guard_dir: where
    the guard's files are; empty: it gets none. leader: the first component of a heterogeneous job, if this is
    one of its components: the tasks of all components are told the leader's number as SLURM_JOB_ID, while
    their prologs have their own (seen on 22.05.8, 24.11.5 and 26.05.5). None: it is a plain job. decided:
    False while its prolog starts MPS daemons, and may still refuse it.
    """

    job: JobId
    uid: int
    devices: tuple[JobDevice, ...]
    user: str = ""
    refused: str = ""
    guard_dir: str = ""
    leader: JobId | None = None
    decided: bool = True
    version: int = RECORD_VERSION

    @property
    def gres(self) -> str:
        """What it has, as a request: ``mps:25``, ``gpu:h100:2``."""
        return as_request(self.devices)


def as_request(devices: Iterable[JobDevice]) -> str:
    """What a job with these devices asked for: ``mps:25``, ``gpu:h100:2``."""
    counts: dict[str, int] = {}
    for device in devices:
        key = device.gres.value if device.units else f"gpu:{device.type}"
        counts[key] = counts.get(key, 0) + (device.units or 1)
    return ",".join(f"{name}:{count}" for name, count in counts.items())

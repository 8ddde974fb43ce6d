"""What a running Slurm says: of a node, of the jobs on it, of its settings."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from partage.slurm.model.job import JobId
from partage.slurm.model.version import SlurmVersion
from partage.values import Frozen

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

    gres: what it holds, ``gpu:h100:2`` or ``mps:25``. name: what its owner calls it; empty: not known.
    """

    job: JobId
    state: str
    uid: int | None = None
    user: str = ""
    gpus: tuple[int, ...] | None = None
    gres: str = ""
    name: str = ""

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

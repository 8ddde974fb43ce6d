"""Slurm's view of a node: its version, its generic resources (GRES), and what a GPU is called there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import field

from partage.model.ids import DeviceUuid
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


class GresRecord(Frozen):
    """One line of gres.conf.

    type: only of ``gpu``. count: None: as many as there are files. files: device files of the node.
    multiple: all files are one GRES (``MultipleFiles``, MIG). remark: comment above the line.
    """

    name: GresName
    type: str = ""
    count: int | None = None
    files: tuple[str, ...] = ()
    multiple: bool = False
    flags: tuple[str, ...] = ()
    remark: str = ""


class SlurmDevice(Frozen):
    """One GRES ``gpu`` of a node: a GPU or a MIG device.

    index: what Slurm calls it: its place in the node's list, as in SLURM_JOB_GPUS; not its NVML index.
    name: NVML's, ``3`` or ``3:1``. shares: ``mps`` or ``shard``, None for a device that is not shared;
    units: how many of them it has. replicas: shares that the policy asks for. ask: how many shards a job asks
    for, in words.
    """

    index: int
    name: str
    uuid: DeviceUuid
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

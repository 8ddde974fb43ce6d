"""What stands behind each index of SLURM_JOB_GPUS on a node: ``devices.json``, which the prolog reads."""

from __future__ import annotations

from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.slurm.model.version import GresName, SlurmVersion
from partage.values import Frozen

WRITTEN_BY = "partage slurm config"


class GresDevice(Frozen, kw_only=True):
    """A GPU or a MIG device, as a GRES ``gpu`` of a node or of a job.

    index: what Slurm calls it, as in SLURM_JOB_GPUS. name: NVML's, ``3`` or ``3:1``. uuid: of the device;
    gpu: of the GPU that it is, or is part of. units: of ``mps`` or ``shard``. limited: the driver is to hold
    jobs with a share to their memory. limits_nest: an inner limit adds to one further out.
    """

    index: int
    name: str
    uuid: DeviceUuid
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

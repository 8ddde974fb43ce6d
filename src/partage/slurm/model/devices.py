"""What stands behind each index of SLURM_JOB_GPUS on a node: ``devices.json``, which the prolog reads."""

from __future__ import annotations

from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.slurm.model.version import GresName, SlurmVersion
from partage.values import Frozen

WRITTEN_BY = "partage slurm config"


class NodeDevice(Frozen):
    """A GRES ``gpu``: a GPU or a MIG device.

    index: what Slurm calls it. name: NVML's, ``3`` or ``3:1``. strategy: of its
    GPU, as in ``DeviceOffer``. shares: ``mps`` or ``shard``; None: it is not shared. units: how many it has.
    guarantee: what a job is guaranteed that has all of it. guard: whether jobs with a share get the guard.
    multi_user: one MPS server for all users; None: if the control program can do it. limited: jobs with a
    share are to have a memory limit of the driver's. limits_nest: an inner one adds to one further out.
    """

    index: int
    name: str
    uuid: DeviceUuid
    gpu: GpuUuid
    type: str
    strategy: Strategy
    memory_bytes: int
    guarantee: Guarantee
    shares: GresName | None = None
    units: int = 0
    guard: bool = False
    multi_user: bool | None = None
    limited: bool = False
    limits_nest: bool = False


class NodeDevices(Frozen, kw_only=True):
    """The devices of one node, in Slurm's order: that of its lines in gres.conf. slurm: the release that
    gres.conf was written for.
    """

    written_by: str = WRITTEN_BY
    version: int = 1
    node: str
    slurm: SlurmVersion
    devices: tuple[NodeDevice, ...] = ()

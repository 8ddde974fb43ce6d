"""A node with one GPU of each kind, as its prolog knows it."""

from __future__ import annotations

from msgspec.structs import replace

from partage.model.ids import GpuUuid, MigUuid
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.slurm.model import GresName, NodeDevice, NodeDevices, SlurmVersion
from partage.units import GIB

SIZE = 80 * GIB
ALL = {
    "SLURM_JOB_ID": "41",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_USER": "alice",
    "SLURM_JOB_GPUS": "0",
}


def gpu(number: int) -> GpuUuid:
    return GpuUuid(f"GPU-00000000-0000-0000-0000-{number:012}")


def _device(index, name, uuid, gpu, kind, strategy, memory_bytes=SIZE, **more):
    return NodeDevice(
        index=index, name=name, uuid=uuid, gpu=gpu, type=kind, strategy=strategy, memory_bytes=memory_bytes,
        guarantee=Guarantee.HARD, **more,
    )  # fmt: skip


MIG = MigUuid("MIG-00000000-0000-0000-0000-000000000001")
NODE = NodeDevices(
    node="g1",
    slurm=SlurmVersion(22, 5, 8),
    devices=(
        _device(0, "1:0", MIG, gpu(1), "h100_1g.10gb", Strategy.MIG, memory_bytes=10 * GIB),
        _device(1, "0", gpu(0), gpu(0), "h100", Strategy.EXCLUSIVE),
        _device(2, "2", gpu(2), gpu(2), "h100_shared", Strategy.MPS, shares=GresName.MPS, units=100),
        _device(
            3, "3", gpu(3), gpu(3), "h100_shared", Strategy.TIME_SLICING, shares=GresName.SHARD, units=4,
            guard=True,
        ),
    ),
)  # fmt: skip


LIMITED = replace(NODE, devices=(*NODE.devices[:3], replace(NODE.devices[3], guard=False, limited=True)))
"""The same, where jobs with shards are to have memory limits of the driver's."""

"""The devices behind Slurm's indexes, from the same values as gres.conf. Pure."""

from __future__ import annotations

from partage.model.driver_limit import LimitBackend
from partage.model.gpu import Gpu
from partage.model.ids import DeviceUuid
from partage.model.share import DeviceOffer, Guarantee
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.gpu_devices import device_memory
from partage.slurm.model.devices import NodeDevice, NodeDevices
from partage.slurm.model.version import NodeGres, SlurmDevice, SlurmVersion


def node_devices(name: str, gres: NodeGres, desired: DesiredState, version: SlurmVersion) -> NodeDevices:
    """What stands behind each index of a node. gres: what Slurm is told of it, made from ``desired``."""
    rows = {row.device: row for offered in desired.offer.values() for row in offered}
    gpus = {gpu.uuid: gpu for gpu in desired.inventory}
    users = {
        daemon.device: daemon.multi_user
        for settings in desired.settings.values()
        for daemon in settings.daemons
    }
    return NodeDevices(
        node=name,
        slurm=version,
        devices=tuple(
            _device(device, rows[device.uuid], gpus[rows[device.uuid].gpu], users) for device in gres.devices
        ),
    )


def _device(
    device: SlurmDevice, row: DeviceOffer, gpu: Gpu, users: dict[DeviceUuid, bool | None]
) -> NodeDevice:
    mig = next((mig_device for mig_device in gpu.mig_devices if mig_device.uuid == device.uuid), None)
    memory = device_memory(gpu, mig)
    return NodeDevice(
        index=device.index,
        name=device.name,
        uuid=device.uuid,
        gpu=row.gpu,
        type=device.type,
        strategy=row.strategy,
        memory_bytes=memory.memory_bytes,
        guarantee=Guarantee.HARD if memory.alone else Guarantee.NONE,
        shares=device.shares,
        units=device.units,
        guard=row.guard,
        multi_user=users.get(device.uuid),
        limited=row.limited,
        limits_nest=row.limited and gpu.limits is not None and gpu.limits.backend is LimitBackend.DMEM,
    )

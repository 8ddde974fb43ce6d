"""The files of one node: what they have to say, and whether they say it. Pure.

The devices behind Slurm's indexes come from the same values as gres.conf. Who writes what: a node with a
gres.conf of its own has all of it there; where all nodes share the files, each has two small ones that the
shared gres.conf and slurm.conf include.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256

from partage.codec.values import CodecError, decode
from partage.model.driver_limit import LimitBackend
from partage.model.gpu import Gpu
from partage.model.ids import DeviceUuid
from partage.model.share import DeviceOffer, Guarantee
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.gpu_devices import device_memory
from partage.slurm.model import NodeDevice, NodeDevices, NodeGres, SlurmConfig, SlurmDevice, SlurmVersion
from partage.slurm.text.conf_writer import GRES_CONF, gres_conf, gres_value, slurm_conf


class Files(StrEnum):
    """The node's files, compared with what they have to be. remarks: only comments differ."""

    RIGHT = "right"
    REMARKS = "remarks"
    WRONG = "wrong"


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


class Writes(StrEnum):
    """Which of Slurm's files the agent of a node writes.

    own: gres.conf, which is this node's alone. shared: ``NODE.gres.conf`` and ``NODE.slurm.conf`` in a
    directory of all nodes, included by gres.conf and slurm.conf. nothing: it says what they need.
    """

    OWN = "own"
    SHARED = "shared"
    NOTHING = "nothing"


def wanted_files(config: SlurmConfig, writes: Writes) -> dict[str, str]:
    """The files of a configuration of one node, by name; empty where somebody else writes them."""
    (node,) = config.nodes
    if writes is Writes.NOTHING:
        return {}
    if writes is Writes.OWN:
        return {GRES_CONF: gres_conf(config)}
    lines = slurm_conf(config).splitlines()
    head = next(line for line in lines if line.startswith("#"))
    (own,) = (line for line in lines if line.startswith("NodeName="))
    return {f"{node.name}.gres.conf": gres_conf(config), f"{node.name}.slurm.conf": f"{head}\n{own}\n"}


def wanted_counts(config: SlurmConfig) -> str:
    """``Gres=`` of the node."""
    (node,) = config.nodes
    return gres_value(node.gres.counts)


def compare(have: Mapping[str, str], wanted: Mapping[str, str], devices: tuple[str, str]) -> Files:
    """Whether files (name to text; a missing one is not there) are as wanted. devices: devices.json, as it is
    and as it has to be; one that is not there (empty) may be written at any time."""
    if digest(have) != digest(wanted) or (devices[0] and _differ(*devices)):
        return Files.WRONG
    return Files.RIGHT if dict(have) == dict(wanted) and devices[0] == devices[1] else Files.REMARKS


def digest(files: Mapping[str, str]) -> str:
    """Of what the files mean, without comments."""
    lines = [line for name in sorted(files) for line in (name, *_meant(files[name]))]
    return sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def _meant(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def _differ(is_now: str, wanted: str) -> bool:
    """Whether an index means another device than it has to."""
    try:
        return _indexes(is_now) != _indexes(wanted)
    except CodecError:
        return True


def _indexes(text: str) -> list[tuple[object, ...]]:
    devices = decode(NodeDevices, text.encode())
    return [(device.index, device.uuid, device.shares, device.units) for device in devices.devices]

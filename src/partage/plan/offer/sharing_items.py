"""Which device belongs to which item of NVIDIA's ``sharing``: each item selects devices of one resource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partage.model.gpu import Gpu, Inventory, MigDevice
from partage.model.ids import GpuUuid, ResourceName
from partage.model.policy import (
    AllDevices,
    DeviceSelector,
    ListedDevices,
    LowestIndexes,
    Policy,
    ResourceEntry,
)
from partage.plan.offer.findings import Findings
from partage.plan.offer.gpu_devices import PlannedDevice
from partage.plan.offer.select import all_indexes
from partage.values import Frozen


class ClaimableDevice(Frozen):
    """One device of a GPU, and its resource name if it is not renamed. position: on its GPU."""

    gpu: Gpu
    mig: MigDevice | PlannedDevice | None
    resource: ResourceName
    position: int

    @property
    def key(self) -> tuple[GpuUuid, int]:
        """Unique among the devices of the node."""
        return self.gpu.uuid, self.position

    @property
    def index(self) -> str:
        """NVIDIA's index, ``0`` or ``0:1``."""
        number = self.mig.index if isinstance(self.mig, MigDevice) else self.position
        return str(self.gpu.index) if self.mig is None else f"{self.gpu.index}:{number}"


def claim(
    policy: Policy, devices: Sequence[ClaimableDevice], inventory: Inventory, findings: Findings
) -> Mapping[tuple[GpuUuid, int], ResourceEntry]:
    """Key of a device to the item that selects it."""
    owners: dict[tuple[GpuUuid, int], ResourceEntry] = {}
    for entry in policy.entries:
        if not isinstance(entry, ResourceEntry):
            continue
        of_resource = [device for device in devices if device.resource == entry.resource]
        if not of_resource:
            names = ", ".join(dict.fromkeys(device.resource for device in devices)) or "none"
            message = f"{entry.resource} is not a resource of this node"
            findings.add("doubtful", f"{entry.origin}.name", message, f"it has: {names}")
            continue
        for device in _taken(entry, entry.devices, of_resource, inventory, findings):
            owner = owners.setdefault(device.key, entry)
            if owner is not entry:
                findings.add("wrong", entry.origin, _overlap(entry, owner), gpus=[device.gpu.index])
    return owners


def _overlap(entry: ResourceEntry, owner: ResourceEntry) -> str:
    if entry.sharing.strategy is not owner.sharing.strategy:
        return f"overlaps with {owner.origin}: one GPU cannot be shared by time-slicing and MPS"
    return f"overlaps with {owner.origin}: one device has one sharing"


def _taken(
    entry: ResourceEntry,
    selector: DeviceSelector,
    devices: Sequence[ClaimableDevice],
    inventory: Inventory,
    findings: Findings,
) -> list[ClaimableDevice]:
    path = f"{entry.origin}.devices"
    match selector:
        case AllDevices():
            return list(devices)
        case LowestIndexes(n=n):
            return _lowest(path, n, devices, inventory, findings)
        case ListedDevices() as listed:
            return _listed(path, listed, devices, inventory, findings)


def _lowest(
    path: str, n: int, devices: Sequence[ClaimableDevice], inventory: Inventory, findings: Findings
) -> list[ClaimableDevice]:
    """The n lowest. For whole GPUs a lost GPU counts, because it may come back."""
    order: list[tuple[int, ClaimableDevice | None]] = [(device.gpu.index, device) for device in devices]
    if any(device.mig is None for device in devices):
        order += [(lost.index, None) for lost in inventory.lost]
    if n > len(order):
        message = f"requested {n} devices to be replicated, but only {len(order)} devices available"
        findings.add("impossible", path, message)
    ranked = sorted(order, key=lambda row: (row[0], row[1].position if row[1] else 0))
    return [device for _, device in ranked[:n] if device is not None]


def _listed(
    path: str,
    listed: ListedDevices,
    devices: Sequence[ClaimableDevice],
    inventory: Inventory,
    findings: Findings,
) -> list[ClaimableDevice]:
    taken: dict[tuple[GpuUuid, int], ClaimableDevice] = {}
    by_index = {device.index: device for device in devices}
    lost = {str(gpu.index) for gpu in inventory.lost}
    wanted = [str(index) for index in listed.index] + [f"{gpu}:{mig}" for gpu, mig in listed.mig_index]
    for index in wanted:
        if index in by_index:
            taken[by_index[index].key] = by_index[index]
        elif index.partition(":")[0] not in lost:
            findings.add(
                "impossible", path, f"no matching device at index: {index}", _has(devices, inventory)
            )
    by_uuid = {uuid.casefold(): device for device in devices for uuid in _uuids(device)}
    lost_uuids = {gpu.uuid.casefold() for gpu in inventory.lost if gpu.uuid}
    unread = any(gpu.uuid is None for gpu in inventory.lost)
    for uuid in listed.uuid:
        device = by_uuid.get(uuid.casefold())
        if device is not None:
            taken[device.key] = device
        elif unread:
            message = f"no matching device with UUID: {uuid}, unless it is the GPU that is lost"
            findings.add("doubtful", path, message)
        elif uuid.casefold() not in lost_uuids:
            findings.add(
                "impossible", path, f"no matching device with UUID: {uuid}", _has(devices, inventory)
            )
    return list(taken.values())


def _has(devices: Sequence[ClaimableDevice], inventory: Inventory) -> str:
    shown = ", ".join(device.index for device in devices[:16]) + (", ..." if len(devices) > 16 else "")
    return f"{devices[0].resource} has: {shown}; the node has {len(all_indexes(inventory))} GPUs"


def _uuids(device: ClaimableDevice) -> tuple[str, ...]:
    """A MIG device has two names: its UUID, and the older ``MIG-GPU-<uuid>/<gi>/<ci>``."""
    match device.mig:
        case None:
            return (device.gpu.uuid,)
        case MigDevice() as mig:
            return (mig.uuid, f"MIG-{device.gpu.uuid}/{mig.gi_id}/{mig.ci_id}")
        case PlannedDevice():
            return ()

"""GPUs whose MIG devices are made on demand: which devices they have, and which layout is wanted. Pure.

What claims have is the layout. MIG mode stays as it is until somebody needs the other one: a MIG device needs
it on, the whole GPU needs it off. MIG devices that were not made for a claim are not touched, nor is what
they occupy ever wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

from partage.model.claim import GpuDemand
from partage.model.geometry import Geometry, MigProfile, Placement, instance_memory
from partage.model.gpu import EmptyInstance, Gpu, MigDevice
from partage.model.layout import LayoutItem
from partage.model.policy import DesiredMig
from partage.plan.offer.gpu_devices import GpuDevices, PlannedDevice
from partage.text import counted


def on_demand_devices(gpu: Gpu, demand: GpuDemand, geometry: Geometry) -> GpuDevices:
    """The devices that the GPU offers now, or will once what claims want is made.

    Without a claim: all of the GPU while MIG mode is off, else none.
    """
    existing = tuple(device for device in gpu.mig_devices if _is_ours(device, demand))
    if _is_whole(demand) and wanted_layout(gpu, demand) is None:
        return GpuDevices((), True, "MIG mode has to be turned off", judged=False, existing=existing)
    if _is_whole(demand) or not (demand.parts or gpu.mig_enabled):
        pending = "MIG mode has to be turned off" if gpu.mig_enabled else ""
        return GpuDevices((None,), mig=False, pending=pending, judged=False, existing=existing)
    there = {_item(device): device for device in existing}
    devices = tuple(
        device
        for part in sorted(demand.parts, key=_by_place)
        if (device := there.get(part) or _planned(part, geometry, gpu.memory_bytes)) is not None
    )
    return GpuDevices(devices, True, _pending(gpu, demand, devices), judged=False, existing=existing)


def wanted_layout(gpu: Gpu, demand: GpuDemand) -> DesiredMig | None:
    """The layout that claims want of the GPU; None: nothing has to be changed for them.

    What was not made for a claim keeps its place. Where it leaves no room for MIG mode off, nothing is
    changed.
    """
    if gpu.mig_mode is None or gpu.mig_unplaced:
        return None
    foreign = tuple(_item(device) for device in gpu.mig_devices if not _is_ours(device, demand))
    spared = tuple(_empty(empty) for empty in gpu.empty_instances if not _is_own(_empty(empty), demand))
    if _is_whole(demand):
        return None if foreign or spared else DesiredMig(enabled=False)
    left = len(foreign) < len(gpu.mig_devices) or len(spared) < len(gpu.empty_instances)
    if not (demand.parts or left):
        return None
    return DesiredMig((*foreign, *demand.parts), spared=spared)


def foreign_places(gpu: Gpu, demand: GpuDemand) -> Iterator[Placement]:
    """Memory slices of instances that were not made for a claim."""
    for device in gpu.mig_devices:
        if device.placement is not None and not _is_ours(device, demand):
            yield device.placement
    for empty in gpu.empty_instances:
        if not _is_own(_empty(empty), demand):
            yield empty.placement


def _is_whole(demand: GpuDemand) -> bool:
    """Claims never have both; if they did, a MIG device would be in use."""
    return demand.whole and not demand.parts


def _item(device: MigDevice) -> LayoutItem:
    start = None if device.placement is None else device.placement.start
    return LayoutItem(MigProfile.parse(device.profile), start)


def _empty(instance: EmptyInstance) -> LayoutItem:
    return LayoutItem(MigProfile.parse(instance.profile), instance.placement.start)


def _by_place(part: LayoutItem) -> tuple[int, str]:
    return -1 if part.start is None else part.start, str(part.profile)


def _is_ours(device: MigDevice, demand: GpuDemand) -> bool:
    """Claims get whole GPU instances: a device that has only a part of one was made by somebody else."""
    return _is_own(_item(device), demand)


def _is_own(item: LayoutItem, demand: GpuDemand) -> bool:
    return item in demand.made or item in demand.parts


def _planned(part: LayoutItem, geometry: Geometry, total_bytes: int) -> PlannedDevice | None:
    spec = geometry.spec(part.profile)
    if spec is None or part.start is None:
        return None
    return PlannedDevice(part, Placement(part.start, spec.size), instance_memory(spec, geometry, total_bytes))


def _pending(gpu: Gpu, demand: GpuDemand, devices: tuple[MigDevice | PlannedDevice, ...]) -> str:
    missing = [device.item for device in devices if isinstance(device, PlannedDevice)]
    if missing:
        mode = "" if gpu.mig_enabled else "MIG mode has to be turned on, and "
        return f"{mode}claims wait for {counted(item.profile for item in missing)}"
    ended = [device for device in gpu.mig_devices if _is_ours(device, demand) and device not in devices]
    if ended:
        return f"{counted(device.profile for device in ended)} of claims that have ended has to be destroyed"
    return ""

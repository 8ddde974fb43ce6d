"""What a GPU has to be set to for its shares: MPS daemons, compute mode, the length of time slices."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from partage.model.gpu import MigDevice
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import DaemonSpec
from partage.model.policy import MemoryUnits, Mps, TimeSlicing
from partage.model.strategy import Interval, Via
from partage.plan.offer.gpu_devices import Target, device_memory
from partage.plan.offer.memory_units import count_units, unit_namespaces
from partage.plan.offer.mps_shares import Portions, limits_clients, portions
from partage.values import Frozen


class GpuSettings(Frozen):
    """What one GPU has to be set to.

    daemons: one for the GPU, or one for each of its MIG devices. exclusive_process: the compute mode.
    interval: the length of its time slices; None: whatever it is.
    """

    daemons: tuple[DaemonSpec, ...] = ()
    exclusive_process: bool = False
    interval: Interval | None = None


NO_SETTINGS = GpuSettings()


def settings_of(targets: Iterable[Target]) -> dict[GpuUuid, GpuSettings]:
    """What the targets of an assignment need, by GPU UUID; GPUs that need nothing are left out.

    A MIG device that does not exist yet has no daemon yet.
    """
    settings: dict[GpuUuid, GpuSettings] = {}
    for target in targets:
        now = settings.get(target.gpu.uuid, NO_SETTINGS)
        sharing = target.sharing
        if isinstance(sharing, Mps) and (target.mig is None or isinstance(target.mig, MigDevice)):
            device = target.gpu.uuid if target.mig is None else target.mig.uuid
            alone = sharing.exclusive_process and target.mig is None
            daemons = (*now.daemons, daemon_spec(target, sharing, device))
            now = replace(now, daemons=daemons, exclusive_process=alone)
        if isinstance(sharing, TimeSlicing) and sharing.interval is not None:
            now = replace(now, interval=sharing.interval)
        if now != NO_SETTINGS:
            settings[target.gpu.uuid] = now
    return settings


def daemon_spec(target: Target, sharing: Mps, device: DeviceUuid) -> DaemonSpec:
    """The daemon of a device, with the limits of its shares. device: its UUID."""
    gpu = target.gpu
    memory_bytes = device_memory(gpu, target.mig).memory_bytes
    if not limits_clients(gpu):
        return DaemonSpec(gpu.uuid, device, multi_user=sharing.multi_user)
    if sharing.units is not None:
        return _unit_daemon(target, sharing, sharing.units, device, memory_bytes)
    shares = portions(sharing, memory_bytes)
    if not isinstance(shares, Portions):
        return DaemonSpec(gpu.uuid, device, multi_user=sharing.multi_user)
    return DaemonSpec(gpu.uuid, device, *shares.limits_outside, sharing.multi_user, shares.namespaces)


def _unit_daemon(
    target: Target, sharing: Mps, units: MemoryUnits, device: DeviceUuid, memory_bytes: int
) -> DaemonSpec:
    """The daemon of a device that is shared by amounts. Outside of its namespaces nobody gets more than one
    unit; without namespaces the ceiling is all that is promised.
    """
    count = count_units(units, memory_bytes)
    if sharing.protocol >= 3 and target.via is Via.CLAIMS:
        unit_bytes = units.unit_bytes
        return DaemonSpec(target.gpu.uuid, device, unit_bytes, 100, sharing.multi_user, slots=count)
    if sharing.protocol >= 3:
        spaces = unit_namespaces(units, count)
        return DaemonSpec(target.gpu.uuid, device, units.unit_bytes, 100, sharing.multi_user, spaces)
    ceiling_bytes = max(count, 1) * units.unit_bytes
    return DaemonSpec(target.gpu.uuid, device, ceiling_bytes, 100, sharing.multi_user)

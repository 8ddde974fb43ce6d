"""The GPU instances that exist on one GPU, empty ones included, and which of them are in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from partage.errors import InsufficientResources, PartageError
from partage.model.geometry import MigProfile, Placement
from partage.model.gpu import Gpu, Inventory, MigDevice
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import GpuUuid, MigUuid
from partage.model.step import CreateCompute, Step
from partage.values import Frozen


class LiveCompute(Frozen):
    """A compute instance that exists, and who uses it."""

    ci_id: int
    uuid: MigUuid
    profile: MigProfile
    users: tuple[GpuUse, ...] = ()


class LiveInstance(Frozen):
    """A GPU instance that exists.

    users: of the GPU instance if it has no compute instance. renew: it must not be reused.
    """

    gi_id: int
    profile: MigProfile
    placement: Placement
    computes: tuple[LiveCompute, ...] = ()
    users: tuple[GpuUse, ...] = ()
    renew: bool = False

    @property
    def busy(self) -> int:
        """How many of its parts are in use."""
        return sum(bool(compute.users) for compute in self.computes) + bool(self.users)

    @property
    def all_users(self) -> tuple[GpuUse, ...]:
        """All users of any part of it."""
        return tuple(
            dict.fromkeys([*self.users, *(use for compute in self.computes for use in compute.users)])
        )


def live_instances(gpu: Gpu, uses: Iterable[GpuUse], renew: Collection[int] = ()) -> tuple[LiveInstance, ...]:
    """The instances on ``gpu``, by first memory slice.

    uses: a use of the whole GPU counts for every instance, because it is not known which one it is.
    Monitors do not count: an instance can be destroyed while they run. renew: ids of GPU instances not to
    be reused.
    """
    tenants = [use for use in uses if use.gpu == gpu.uuid and use.kind is not UseKind.MONITOR]
    devices: dict[int, list[MigDevice]] = defaultdict(list)
    for device in gpu.mig_devices:
        devices[device.gi_id].append(device)
    filled = [_filled(gi_id, group, tenants, gi_id in renew) for gi_id, group in devices.items()]
    empty = [
        LiveInstance(
            instance.gi_id,
            MigProfile.parse(instance.profile),
            instance.placement,
            users=tuple(use for use in tenants if use.whole or (use.gi_id == instance.gi_id)),
            renew=instance.gi_id in renew,
        )
        for instance in gpu.empty_instances
        if instance.gi_id not in devices
    ]
    return tuple(sorted([*filled, *empty], key=lambda instance: instance.placement))


def to_renew(inventory: Inventory, step: Step, error: PartageError) -> dict[GpuUuid, frozenset[int]]:
    """The GPU instance in which the driver could not place a compute instance, as ``renew`` of a plan.

    A larger compute instance needs adjacent free compute slices, and existing ones cannot be moved.
    Empty if the step failed for another reason, or if the GPU instance no longer exists.
    """
    gpu = inventory.gpu(step.gpu) if isinstance(step, CreateCompute) else None
    if gpu is None or not isinstance(step, CreateCompute) or not isinstance(error, InsufficientResources):
        return {}
    place = (step.instance, step.placement)
    found = {
        instance.gi_id
        for instance in live_instances(gpu, ())
        if (str(instance.profile), instance.placement) == place
    }
    return {gpu.uuid: frozenset(found)} if found else {}


def _filled(gi_id: int, devices: list[MigDevice], tenants: Iterable[GpuUse], renew: bool) -> LiveInstance:
    computes = tuple(
        LiveCompute(
            device.ci_id,
            device.uuid,
            MigProfile.parse(device.profile),
            tuple(use for use in tenants if _uses(use, device)),
        )
        for device in sorted(devices, key=lambda device: device.ci_id)
    )
    return LiveInstance(
        gi_id, computes[0].profile.gpu_instance, devices[0].known_placement, computes, renew=renew
    )


def _uses(use: GpuUse, device: MigDevice) -> bool:
    if use.whole or use.device == device.uuid:
        return True
    return use.device is None and use.gi_id == device.gi_id and use.ci_id in (None, device.ci_id)

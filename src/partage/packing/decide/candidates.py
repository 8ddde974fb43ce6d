"""Which GPUs can be used for a demand, what is on them, and why the others cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from partage.model.geometry import Geometry, MigProfile, Placement, ProfileSpec
from partage.model.gpu import Gpu, Inventory, MigDevice, RecoveryAction
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import DeviceUuid, GpuUuid, MigUuid
from partage.values import Answer, Frozen, grouped

State = tuple[Geometry, bool, tuple[tuple[MigProfile, int, tuple[tuple[MigProfile, bool], ...]], ...]]
"""Everything about a candidate that matters: equal states can have equal layouts at equal cost."""


class CandidateDevice(Frozen):
    """An existing MIG device. held: in use, or possibly in use: it stays and serves nothing else."""

    profile: MigProfile
    uuid: MigUuid
    held: bool


class CandidateInstance(Frozen):
    """An existing GPU instance with its MIG devices; () if it has no compute instances."""

    spec: ProfileSpec
    start: int
    devices: tuple[CandidateDevice, ...]

    @property
    def held(self) -> bool:
        """Whether it has to stay."""
        return any(device.held for device in self.devices)

    @property
    def placement(self) -> Placement:
        """Its memory slices."""
        return Placement(self.start, self.spec.size)


class CandidateGpu(Frozen):
    """A GPU whose layout can be changed. machine: name of its node; None: this node."""

    machine: str | None
    gpu: Gpu
    geometry: Geometry
    instances: tuple[CandidateInstance, ...]

    @property
    def state(self) -> State:
        """Model and instances, without names."""
        live = tuple(
            (
                instance.spec.profile,
                instance.start,
                tuple((device.profile, device.held) for device in instance.devices),
            )
            for instance in self.instances
        )
        return self.geometry, self.gpu.mig_enabled, live


class UnavailableGpu(Answer):
    """A GPU whose layout cannot be changed now. gpu: its index. reason: a sentence without its subject."""

    machine: str | None
    gpu: int
    uuid: GpuUuid | None
    reason: str


def in_use(inventory: Inventory, uses: Iterable[GpuUse]) -> frozenset[DeviceUuid]:
    """UUIDs of the GPUs and MIG devices that pods and processes use. Monitors are ignored."""
    work = [use for use in uses if use.kind is not UseKind.MONITOR]
    return frozenset(
        device.uuid
        for gpu in inventory
        for device in gpu.mig_devices
        if any(use.is_of(gpu.uuid, device) for use in work)
    ) | {use.gpu for use in work if use.whole}


def survey(
    machine: str | None,
    inventory: Inventory,
    geometry_of: Callable[[Gpu], Geometry | None],
    why_no_geometry: Callable[[Gpu], str],
    held: frozenset[DeviceUuid] = frozenset(),
) -> tuple[tuple[CandidateGpu, ...], tuple[UnavailableGpu, ...]]:
    """The GPUs of one node, each as candidate or as unavailable.

    held: UUIDs of the GPUs and MIG devices that are held.
    """
    candidates: list[CandidateGpu] = []
    others = [
        UnavailableGpu(machine, lost.index, lost.uuid, f"is lost: {lost.reason}") for lost in inventory.lost
    ]
    for gpu in inventory:
        found = _examine(gpu, geometry_of(gpu), held)
        if isinstance(found, str):
            others.append(UnavailableGpu(machine, gpu.index, gpu.uuid, found))
        elif found is None:
            others.append(UnavailableGpu(machine, gpu.index, gpu.uuid, why_no_geometry(gpu)))
        else:
            candidates.append(CandidateGpu(machine, gpu, *found))
    return tuple(candidates), tuple(sorted(others, key=lambda other: other.gpu))


def _examine(
    gpu: Gpu, geometry: Geometry | None, held: frozenset[DeviceUuid]
) -> tuple[Geometry, tuple[CandidateInstance, ...]] | str | None:
    """The instances of the GPU, or why it is no candidate; None: its geometry is not known."""
    if gpu.mig_mode is None:
        return f"{gpu.product} has no MIG"
    if gpu.uuid in held:
        return "is held as a whole"
    if gpu.mig_unplaced:
        return "has MIG devices at places that only root may read"
    if gpu.recovery not in (None, RecoveryAction.NONE):
        return f"waits for {gpu.recovery.word.replace('-', ' ')}"
    if geometry is None or not geometry.placed:
        return None
    try:
        live = sorted(_instances(gpu, geometry, held), key=lambda instance: instance.start)
    except ValueError as error:
        return str(error)
    return geometry, tuple(live)


def _instances(gpu: Gpu, geometry: Geometry, held: frozenset[DeviceUuid]) -> Iterator[CandidateInstance]:
    """Raises ValueError for a profile that the model does not have: then the free slices are not known."""
    by_instance = grouped((device.gi_id, device) for device in gpu.mig_devices)
    for devices in by_instance.values():
        spec = _spec(geometry, devices[0].profile)
        yield CandidateInstance(spec, devices[0].known_placement.start, tuple(_devices(devices, held)))
    for empty in gpu.empty_instances:
        yield CandidateInstance(_spec(geometry, empty.profile), empty.placement.start, ())


def _spec(geometry: Geometry, profile: str) -> ProfileSpec:
    spec = geometry.spec(MigProfile.parse(profile))
    if spec is None:
        raise ValueError(f"has an instance {profile}, and {geometry.model} is not known to have that profile")
    return spec


def _devices(devices: Iterable[MigDevice], held: frozenset[DeviceUuid]) -> list[CandidateDevice]:
    live = [
        CandidateDevice(MigProfile.parse(device.profile), device.uuid, device.uuid in held)
        for device in devices
    ]
    return sorted(live, key=lambda device: (device.profile, device.held, device.uuid))

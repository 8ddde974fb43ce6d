"""Which GPUs a packing may lay out, what lives on them, and why the others are out of the question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from partage.model.geometry import Geometry, ProfileSpec
from partage.model.gpu import Gpu, Inventory, MigDevice, RecoveryAction
from partage.model.placement import Placement
from partage.model.profile import MigProfile
from partage.model.step import GpuUse, UseKind

State = tuple[Geometry, bool, tuple[tuple[MigProfile, int, tuple[tuple[MigProfile, bool], ...]], ...]]
"""All that matters about a candidate: two of one state can be laid out alike, at the same cost."""


@dataclass(frozen=True, slots=True)
class CandidateDevice:
    """A MIG device that exists. held: somebody has it, or may have it: it stays, and serves nobody else."""

    profile: MigProfile
    uuid: str
    held: bool


@dataclass(frozen=True, slots=True)
class CandidateInstance:
    """A GPU instance that exists, with its MIG devices; none: no compute instance has been made in it."""

    spec: ProfileSpec
    start: int
    devices: tuple[CandidateDevice, ...]

    @property
    def held(self) -> bool:
        """Whether it has to stay."""
        return any(device.held for device in self.devices)

    @property
    def placement(self) -> Placement:
        """The memory slices that it occupies."""
        return Placement(self.start, self.spec.size)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU that can be laid out. machine: what its node is called, None: this node."""

    machine: str | None
    gpu: Gpu
    geometry: Geometry
    instances: tuple[CandidateInstance, ...]

    @property
    def state(self) -> State:
        """What it is and what lives on it, but for names."""
        live = tuple(
            (
                instance.spec.profile,
                instance.start,
                tuple((device.profile, device.held) for device in instance.devices),
            )
            for instance in self.instances
        )
        return self.geometry, self.gpu.mig_enabled, live


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A GPU that cannot be laid out now. reason: a sentence without its subject."""

    machine: str | None
    index: int
    uuid: str | None
    reason: str


def in_use(inventory: Inventory, uses: Iterable[GpuUse]) -> frozenset[str]:
    """UUIDs of the GPUs and MIG devices that pods and processes have open. Monitors hold nothing."""
    work = [use for use in uses if use.kind is not UseKind.MONITOR]
    return frozenset(
        device.uuid
        for gpu in inventory
        for device in gpu.mig_devices
        if any(_is_of(use, gpu, device) for use in work)
    ) | {use.gpu for use in work if use.whole}


def _is_of(use: GpuUse, gpu: Gpu, device: MigDevice) -> bool:
    if use.gpu != gpu.uuid or use.whole:
        return False
    return use.device == device.uuid or (use.gi_id == device.gi_id and use.ci_id in (None, device.ci_id))


def survey(
    machine: str | None,
    inventory: Inventory,
    geometry_of: Callable[[Gpu], Geometry | None],
    why_no_geometry: Callable[[Gpu], str],
    held: frozenset[str] = frozenset(),
) -> tuple[tuple[Candidate, ...], tuple[Unavailable, ...]]:
    """The GPUs of one node, each of them candidate or unavailable.

    held: UUIDs of the GPUs and MIG devices that somebody holds.
    """
    candidates: list[Candidate] = []
    others = [
        Unavailable(machine, lost.index, lost.uuid, f"is lost: {lost.reason}") for lost in inventory.lost
    ]
    for gpu in inventory:
        found = _look(gpu, geometry_of(gpu), held)
        if isinstance(found, str):
            others.append(Unavailable(machine, gpu.index, gpu.uuid, found))
        elif found is None:
            others.append(Unavailable(machine, gpu.index, gpu.uuid, why_no_geometry(gpu)))
        else:
            candidates.append(Candidate(machine, gpu, *found))
    return tuple(candidates), tuple(sorted(others, key=lambda other: other.index))


def _look(
    gpu: Gpu, geometry: Geometry | None, held: frozenset[str]
) -> tuple[Geometry, tuple[CandidateInstance, ...]] | str | None:
    """What lives on the GPU, or why it is no candidate; None: its geometry is not known."""
    if gpu.mig_mode is None:
        return f"{gpu.product} has no MIG"
    if gpu.uuid in held:
        return "is held as a whole"
    if gpu.recovery not in (None, RecoveryAction.NONE):
        return f"waits for {gpu.recovery.name.lower().replace('_', ' ')}"
    if geometry is None or not any(spec.starts for spec in geometry.profiles):
        return None
    try:
        live = sorted(_instances(gpu, geometry, held), key=lambda instance: instance.start)
    except ValueError as error:
        return str(error)
    return geometry, tuple(live)


def _instances(gpu: Gpu, geometry: Geometry, held: frozenset[str]) -> Iterator[CandidateInstance]:
    """Raises ValueError for a profile that the model does not have: what room it leaves is not known."""
    by_instance: dict[int, list[MigDevice]] = {}
    for device in gpu.mig_devices:
        by_instance.setdefault(device.gi_id, []).append(device)
    for devices in by_instance.values():
        spec = _spec(geometry, devices[0].profile)
        yield CandidateInstance(spec, devices[0].placement.start, tuple(_devices(devices, held)))
    for empty in gpu.empty_instances:
        yield CandidateInstance(_spec(geometry, empty.profile), empty.placement.start, ())


def _spec(geometry: Geometry, profile: str) -> ProfileSpec:
    spec = geometry.spec(MigProfile.parse(profile))
    if spec is None:
        raise ValueError(f"has an instance {profile}, and {geometry.model} is not known to have that profile")
    return spec


def _devices(devices: Iterable[MigDevice], held: frozenset[str]) -> list[CandidateDevice]:
    live = [
        CandidateDevice(MigProfile.parse(device.profile), device.uuid, device.uuid in held)
        for device in devices
    ]
    return sorted(live, key=lambda device: (device.profile, device.held, device.uuid))

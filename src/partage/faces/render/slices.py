"""The slices of one GPU under MIG, as values: what sits where in memory, and which compute slices that takes.

Compute slices have no place of their own in the driver's words. They are drawn where the memory slices of
their GPU instance are: an H100 has 8 memory slices and 7 compute slices, so the last one has none beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from partage.model.geometry import Geometry
from partage.model.gpu import Gpu
from partage.model.ids import DeviceUuid
from partage.model.placement import Placement
from partage.model.profile import MigProfile
from partage.model.share import DeviceOffer, GpuOffer
from partage.values import Frozen

_USUAL_MEMORY_SLICES = 8
"""Of a model that the catalogue does not know: most have as many."""


class SliceUse(StrEnum):
    """What a compute slice is for.

    runs:  a MIG device has it. idle: its memory slices are taken by an instance that has no use for it.
    uncut: not in any instance. absent: there is none beside these memory slices.
    """

    RUNS = "runs"
    IDLE = "idle"
    UNCUT = "uncut"
    ABSENT = "absent"


class DrawnInstance(Frozen):
    """One GPU instance, living or planned.

    offerings: its MIG devices as they are offered; empty where nothing of it is. label: their profiles.
    compute: compute slices that its MIG devices have together.
    """

    label: str
    placement: Placement
    compute: int
    offerings: tuple[DeviceOffer, ...] = ()

    @property
    def planned(self) -> bool:
        """It has still to be made."""
        return any(offering.planned for offering in self.offerings)


class ComputeSlice(Frozen):
    """One compute slice, or a gap in their row. width: in memory slices. instance: whose it is, or None."""

    width: int
    use: SliceUse
    instance: DrawnInstance | None = None


class GpuSlices(Frozen):
    """One GPU under MIG. memory, compute: slices that it has; compute 0: not known."""

    memory: int
    compute: int
    instances: tuple[DrawnInstance, ...]

    @property
    def memory_row(self) -> tuple[tuple[int, DrawnInstance | None], ...]:
        """Widths in memory slices from left to right, and what sits there; None: a part that is not cut."""
        row: list[tuple[int, DrawnInstance | None]] = []
        passed = 0
        for instance in self.instances:
            start, size = instance.placement.start, instance.placement.size
            if start > passed:
                row.append((start - passed, None))
            row.append((size, instance))
            passed = start + size
        if passed < self.memory:
            row.append((self.memory - passed, None))
        return tuple(row)

    @property
    def compute_row(self) -> tuple[ComputeSlice, ...]:
        """Every compute slice from left to right; empty where their number is not known."""
        if not self.compute:
            return ()
        width = self.memory // self.compute
        row = [self._compute_slice(n * width, width) for n in range(self.compute)]
        rest = self.memory - width * self.compute
        return (*row, ComputeSlice(rest, SliceUse.ABSENT)) if rest else tuple(row)

    def _compute_slice(self, start: int, width: int) -> ComputeSlice:
        owner = next((one for one in self.instances if start in one.placement.slices), None)
        if owner is None:
            return ComputeSlice(width, SliceUse.UNCUT)
        position = (start - owner.placement.start) // width
        return ComputeSlice(width, SliceUse.RUNS if position < owner.compute else SliceUse.IDLE, owner)


def slices_of(gpu: Gpu, offer: GpuOffer, geometry: Geometry | None) -> GpuSlices | None:
    """The slices of a GPU that offers MIG devices or has some; None where it is whole, or nothing says where.

    geometry: of the GPU's model, None where it is not known.
    """
    if not (any(offering.profile for offering in offer) or (gpu.mig_enabled and not offer)):
        return None
    live: dict[DeviceUuid, Placement] = {device.uuid: device.placement for device in gpu.mig_devices}
    at: dict[Placement, list[DeviceOffer]] = {}
    for offering in offer:
        placement = live.get(offering.device) or _planned_placement(offering, geometry)
        if placement is None:
            return None
        at.setdefault(placement, []).append(offering)
    instances = [_instance(placement, offerings) for placement, offerings in at.items()]
    if not any(instance.planned for instance in instances):
        instances += _unoffered(gpu, at)
    return GpuSlices(
        memory=geometry.memory_slices if geometry else _USUAL_MEMORY_SLICES,
        compute=geometry.compute_slices if geometry else 0,
        instances=tuple(sorted(instances, key=lambda instance: instance.placement)),
    )


def _instance(placement: Placement, offerings: Sequence[DeviceOffer]) -> DrawnInstance:
    devices = {offering.device: offering.profile or "" for offering in offerings}
    return DrawnInstance(_label(devices.values()), placement, _compute(devices.values()), tuple(offerings))


def _unoffered(gpu: Gpu, offered: Mapping[Placement, object]) -> list[DrawnInstance]:
    """What lives on the GPU beside what it offers: MIG devices, and GPU instances without one."""
    rest: dict[Placement, list[str]] = {}
    for device in gpu.mig_devices:
        if device.placement not in offered:
            rest.setdefault(device.placement, []).append(device.profile)
    cut = [DrawnInstance(_label(names), placement, _compute(names)) for placement, names in rest.items()]
    return cut + [DrawnInstance(empty.profile, empty.placement, 0) for empty in gpu.empty_instances]


def _label(profiles: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(profiles))


def _compute(profiles: Iterable[str]) -> int:
    return sum(MigProfile.parse(profile).compute_slices for profile in profiles)


def _planned_placement(offering: DeviceOffer, geometry: Geometry | None) -> Placement | None:
    """Where a MIG device will sit: a planned device is named ``<gpu>/<profile>@<start>#<position>``."""
    if not offering.planned or geometry is None or offering.profile is None:
        return None
    spec = geometry.spec(MigProfile.parse(offering.profile))
    start = offering.device.rpartition("@")[2].partition("#")[0]
    return Placement(int(start), spec.size) if spec and start.isdecimal() else None

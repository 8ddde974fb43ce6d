"""The slices of a GPU under MIG as they lie: memory slices with their GPU instances, and compute slices.

The driver gives no position of compute slices. They are drawn below the memory slices of their GPU instance:
an H100 has 8 memory slices and 7 compute slices, so nothing is below the last memory slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from partage.model.geometry import Geometry, MigProfile, Placement
from partage.model.gpu import Gpu
from partage.model.ids import DeviceUuid
from partage.model.share import DeviceOffer, GpuOffer
from partage.values import Frozen, grouped

_USUAL_MEMORY_SLICES = 8
"""Assumed for a model that is not in the catalogue; most models have 8."""


class SliceUse(StrEnum):
    """How a compute slice is used.

    runs:  a MIG device has it. idle: an instance has its memory slices and does not use it.
    uncut: not in any instance. absent: there is none below these memory slices.
    """

    RUNS = "runs"
    IDLE = "idle"
    UNCUT = "uncut"
    ABSENT = "absent"


class DrawnInstance(Frozen):
    """One GPU instance that exists or is planned.

    offerings: its MIG devices that are offered. label: their profiles. compute: compute slices of all its
    MIG devices.
    """

    label: str
    placement: Placement
    compute: int
    offerings: tuple[DeviceOffer, ...] = ()

    @property
    def planned(self) -> bool:
        """It does not exist yet."""
        return any(offering.planned for offering in self.offerings)


class ComputeSlice(Frozen):
    """One compute slice, or a gap. width: in memory slices. instance: the one that it belongs to."""

    width: int
    use: SliceUse
    instance: DrawnInstance | None = None


class GpuSlices(Frozen):
    """One GPU under MIG. memory, compute: number of slices; compute 0: not known."""

    memory: int
    compute: int
    instances: tuple[DrawnInstance, ...]

    @property
    def memory_row(self) -> tuple[tuple[int, DrawnInstance | None], ...]:
        """From left to right: a width in memory slices, and the instance there; None: no instance."""
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
        """The compute slices from left to right; () if their number is not known."""
        if not self.compute:
            return ()
        width = self.memory // self.compute
        row = [self._compute_slice(n * width, width) for n in range(self.compute)]
        rest = self.memory - width * self.compute
        return (*row, ComputeSlice(rest, SliceUse.ABSENT)) if rest else tuple(row)

    def _compute_slice(self, start: int, width: int) -> ComputeSlice:
        owner = next((instance for instance in self.instances if start in instance.placement.slices), None)
        if owner is None:
            return ComputeSlice(width, SliceUse.UNCUT)
        position = (start - owner.placement.start) // width
        return ComputeSlice(width, SliceUse.RUNS if position < owner.compute else SliceUse.IDLE, owner)


def slices_of(gpu: Gpu, offer: GpuOffer, geometry: Geometry | None) -> GpuSlices | None:
    """The slices of a GPU that offers or has MIG devices; None for others, or if a placement is not known.

    geometry: of the GPU's model; None: not known.
    """
    if not (any(offering.profile for offering in offer) or (gpu.mig_enabled and not offer)):
        return None
    if gpu.mig_unplaced and not any(offering.placement for offering in offer):
        return None
    live: dict[DeviceUuid, Placement | None] = {device.uuid: device.placement for device in gpu.mig_devices}
    at: dict[Placement, list[DeviceOffer]] = {}
    for offering in offer:
        placement = offering.placement or live.get(offering.device)
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
    """Instances that are not offered, also those without MIG devices."""
    rest = grouped(
        (device.placement, device.profile)
        for device in gpu.mig_devices
        if device.placement is not None and device.placement not in offered
    )
    cut = [DrawnInstance(_label(names), placement, _compute(names)) for placement, names in rest.items()]
    return cut + [DrawnInstance(empty.profile, empty.placement, 0) for empty in gpu.empty_instances]


def _label(profiles: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(profiles))


def _compute(profiles: Iterable[str]) -> int:
    return sum(MigProfile.parse(profile).compute_slices for profile in profiles)

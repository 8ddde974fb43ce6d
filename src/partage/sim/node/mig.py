"""MIG devices of a simulated GPU: how a layout is created, and the numbers that follow from a placement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from partage.model.geometry import Geometry, MigProfile, Placement, instance_memory
from partage.model.gpu import Gpu, MigDevice
from partage.model.ids import MigUuid
from partage.model.layout import LayoutItem, PlacedItem, place
from partage.sim.node.machine import derived_uuid

_CAPS_BEFORE_GPUS = 3
_CAPS_PER_GPU = 135
_CAPS_PER_INSTANCE = 9


def create_layout(
    gpu: Gpu, geometry: Geometry, items: Sequence[LayoutItem], seed: str
) -> tuple[MigDevice, ...]:
    """The MIG devices that exist after ``items`` are created on the empty GPU, in NVML's order.

    seed: part of their UUIDs; another seed gives other UUIDs. Raises DoesNotFit.
    """
    placed = place(geometry, items)
    rows = sorted(_with_ids(placed, geometry), key=lambda row: (row[1], row[2]))
    return tuple(
        new_device(
            gpu,
            item.item.profile,
            item.placement,
            ids=(index, gi, ci),
            memory_bytes=instance_memory(item.spec, geometry, gpu.memory_bytes),
            seed=seed,
        )
        for index, (item, gi, ci) in enumerate(rows)
    )


def new_device(
    gpu: Gpu,
    profile: MigProfile,
    placement: Placement,
    *,
    ids: tuple[int, int, int],
    memory_bytes: int,
    seed: str,
) -> MigDevice:
    """A new MIG device. ids: NVML's index, GPU instance id, compute instance id. seed: see create_layout."""
    index, gi, ci = ids
    return MigDevice(
        uuid=MigUuid(derived_uuid("MIG", gpu.uuid, seed, gi, ci)),
        index=index,
        gi_id=gi,
        ci_id=ci,
        profile=str(profile),
        placement=placement,
        memory_bytes=memory_bytes,
        gi_minor=gi_minor(gpu.minor, gi),
        ci_minor=ci_minor(gpu.minor, gi, ci),
    )


def _with_ids(placed: Sequence[PlacedItem], geometry: Geometry) -> Iterator[tuple[PlacedItem, int, int]]:
    """Each placed MIG device with its GPU instance id and its compute instance id."""
    next_ci: dict[int, int] = {}
    for item in placed:
        gi = instance_id(item.placement, geometry.memory_slices)
        ci = next_ci.get(gi, 0)
        next_ci[gi] = ci + 1
        yield item, gi, ci


def instance_id(placement: Placement, memory_slices: int) -> int:
    """The GPU instance id of that placement: 0 the whole, 1-2 halves, 3-6 quarters, 7-14 eighths.

    Source: the open kernel module, and listings of real GPUs. For a real GPU the id is read, never computed.
    """
    parts = memory_slices // placement.size
    return parts - 1 + placement.start // placement.size


def gi_minor(gpu_minor: int, gi: int) -> int:
    """N of ``/dev/nvidia-caps/nvidia-capN`` of a GPU instance, as driver 595 computes it."""
    return _CAPS_BEFORE_GPUS + gpu_minor * _CAPS_PER_GPU + gi * _CAPS_PER_INSTANCE


def ci_minor(gpu_minor: int, gi: int, ci: int) -> int:
    """N of ``/dev/nvidia-caps/nvidia-capN`` of a compute instance."""
    return gi_minor(gpu_minor, gi) + 1 + ci


def compute_starts(devices: Sequence[MigDevice], known: Mapping[MigUuid, int]) -> dict[MigUuid, int]:
    """UUID to first compute slice, for all MIG devices of one GPU instance.

    known: those whose first slice is known. The others follow each other, in the order of their ids.
    """
    starts: dict[MigUuid, int] = {}
    following = 0
    for mig in sorted(devices, key=lambda device: device.ci_id):
        starts[mig.uuid] = known.get(mig.uuid, following)
        following = starts[mig.uuid] + MigProfile.parse(mig.profile).compute_slices
    return starts


def free_compute_start(
    devices: Sequence[MigDevice], starts: Mapping[MigUuid, int], slices: int, total: int
) -> int | None:
    """The lowest compute slice from which ``slices`` of ``total`` are free side by side, or None.

    Which starts a real GPU allows, NVML says. That the slices lie side by side is true for all models.
    """
    taken = {
        starts[device.uuid] + number
        for device in devices
        for number in range(MigProfile.parse(device.profile).compute_slices)
    }
    return next((at for at in range(total - slices + 1) if taken.isdisjoint(range(at, at + slices))), None)

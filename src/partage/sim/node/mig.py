"""Live MIG devices of a simulated GPU: made from a layout, or read from a file and judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from partage.model.geometry import Geometry, ProfileSpec
from partage.model.gpu import EmptyInstance, Gpu, MigDevice
from partage.model.layout import DoesNotFit, LayoutItem, PlacedItem, compute_choices, place
from partage.model.placement import Placement
from partage.model.profile import MigProfile
from partage.units import MIB

_CAPS_BEFORE_GPUS = 3
_CAPS_PER_GPU = 135
_CAPS_PER_INSTANCE = 9


def lay_out(gpu: Gpu, geometry: Geometry, items: Sequence[LayoutItem], birth: str) -> tuple[MigDevice, ...]:
    """The MIG devices that creating ``items`` on the empty GPU gives, in NVML's order.

    birth: what makes the UUIDs differ from those of another layout. Raises DoesNotFit.
    """
    from partage.sim.node.machine import derived_uuid

    placed = place(geometry, items)
    rows = sorted(_numbered(placed, geometry), key=lambda row: (row[1], row[2]))
    return tuple(
        MigDevice(
            uuid=derived_uuid("MIG", gpu.uuid, birth, gi, ci),
            index=index,
            gi_id=gi,
            ci_id=ci,
            profile=str(seat.item.profile),
            placement=seat.placement,
            memory_bytes=instance_memory(seat.spec, geometry, gpu.memory_bytes),
            gi_minor=gi_minor(gpu.minor, gi),
            ci_minor=ci_minor(gpu.minor, gi, ci),
        )
        for index, (seat, gi, ci) in enumerate(rows)
    )


def _numbered(placed: Sequence[PlacedItem], geometry: Geometry) -> Iterator[tuple[PlacedItem, int, int]]:
    """Each seat with the ids of its GPU instance and compute instance."""
    compute_ids: dict[int, int] = {}
    for seat in placed:
        gi = instance_id(seat.placement, geometry.memory_slices)
        ci = compute_ids.get(gi, 0)
        compute_ids[gi] = ci + 1
        yield seat, gi, ci


def instance_id(placement: Placement, memory_slices: int) -> int:
    """The GPU instance id of that span: 0 the whole, 1-2 halves, 3-6 quarters, 7-14 eighths.

    Source: the open kernel module, and listings of real GPUs. On hardware it is read and never computed.
    """
    parts = memory_slices // placement.size
    return parts - 1 + placement.start // placement.size


def instance_memory(spec: ProfileSpec, geometry: Geometry, total_bytes: int) -> int:
    """Memory of one GPU instance; its share of the total, in whole MiB, where no source knows it."""
    if spec.memory_bytes is not None:
        return spec.memory_bytes
    return total_bytes * spec.size // geometry.memory_slices // MIB * MIB


def gi_minor(gpu_minor: int, gi: int) -> int:
    """N of ``/dev/nvidia-caps/nvidia-capN`` of a GPU instance, by the arithmetic of driver 595."""
    return _CAPS_BEFORE_GPUS + gpu_minor * _CAPS_PER_GPU + gi * _CAPS_PER_INSTANCE


def ci_minor(gpu_minor: int, gi: int, ci: int) -> int:
    """N of ``/dev/nvidia-caps/nvidia-capN`` of a compute instance."""
    return gi_minor(gpu_minor, gi) + 1 + ci


def compute_seats(inside: Sequence[MigDevice], known: Mapping[str, int]) -> dict[str, int]:
    """First compute slice of each MIG device of one GPU instance, by UUID.

    known: of some or all of them; the others are packed, in the order of their ids.
    """
    seats: dict[str, int] = {}
    following = 0
    for one in sorted(inside, key=lambda device: device.ci_id):
        seats[one.uuid] = known.get(one.uuid, following)
        following = seats[one.uuid] + MigProfile.parse(one.profile).compute_slices
    return seats


def free_seat(inside: Sequence[MigDevice], seats: Mapping[str, int], slices: int, most: int) -> int | None:
    """The lowest compute slice from which ``slices`` of ``most`` are free side by side; None where none is.

    On hardware NVML says where a compute instance may be; that its slices lie side by side is all that holds
    everywhere.
    """
    taken = {
        seats[one.uuid] + number
        for one in inside
        for number in range(MigProfile.parse(one.profile).compute_slices)
    }
    return next((at for at in range(most - slices + 1) if taken.isdisjoint(range(at, at + slices))), None)


def device_fault(geometry: Geometry, profile: MigProfile, placement: Placement) -> str | None:
    """Why no MIG device of that profile can sit there; None where one can."""
    try:
        place(geometry, [LayoutItem(profile, placement.start)])
    except DoesNotFit as error:
        return str(error)
    spec = geometry.spec(profile)
    if spec is not None and spec.size != placement.size:
        return f"{spec.profile} occupies {spec.size} memory slices of {geometry.model}, not {placement.size}"
    return None


def together_faults(
    geometry: Geometry | None, devices: Sequence[MigDevice], empty: Sequence[EmptyInstance] = ()
) -> Iterator[str]:
    """Why these MIG devices and empty GPU instances, each possible alone, cannot live on one GPU together."""
    hosts: dict[int, list[MigDevice]] = {}
    for device in devices:
        hosts.setdefault(device.gi_id, []).append(device)
    torn = [gi for gi, members in hosts.items() if len({_host(device) for device in members}) > 1]
    if torn:
        yield f"GPU instance {torn[0]} is said to have several profiles or places"
        return
    for gi, members in hosts.items():
        yield from _instance_faults(gi, members)
    ids = [*hosts, *(one.gi_id for one in empty)]
    if len(set(ids)) < len(ids):
        yield "a GPU instance that is empty has an id that another one has, too"
        return
    instances: list[MigDevice | EmptyInstance] = [*(members[0] for members in hosts.values()), *empty]
    if geometry is None:
        yield from _overlaps(instances)
        return
    try:
        place(geometry, [LayoutItem(*_host(one)) for one in instances])
    except DoesNotFit as error:
        yield str(error)


def _host(device: MigDevice | EmptyInstance) -> tuple[MigProfile, int]:
    return MigProfile.parse(device.profile).gpu_instance, device.placement.start


def _instance_faults(gi: int, members: Sequence[MigDevice]) -> Iterator[str]:
    profiles = [MigProfile.parse(device.profile) for device in members]
    ids = [device.ci_id for device in members]
    slices = profiles[0].gpu_slices
    if len(set(ids)) < len(ids):
        yield f"GPU instance {gi} has a compute instance id twice"
    used = sum(profile.compute_slices for profile in profiles)
    if used > slices:
        yield f"the compute instances of GPU instance {gi} need {used} compute slices, and it has {slices}"
    if any(profile.compute_slices not in compute_choices(slices) for profile in profiles):
        yield f"GPU instance {gi} has a compute instance of a size that does not exist"


def _overlaps(devices: Sequence[MigDevice | EmptyInstance]) -> Iterator[str]:
    for position, device in enumerate(devices):
        for other in devices[:position]:
            if device.placement.overlaps(other.placement):
                yield f"GPU instances {other.gi_id} and {device.gi_id} overlap"

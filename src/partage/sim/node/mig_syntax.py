"""MIG instances as machine files say them. What a row leaves out follows from the GPU's model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.safeyaml import Value
from partage.model.gpu import EmptyInstance, Gpu, MigDevice
from partage.model.placement import Placement
from partage.model.profile import MigProfile
from partage.sim.node.machine import derived_uuid
from partage.sim.node.mig import ci_minor, device_fault, gi_minor, instance_memory, together_faults
from partage.sim.node.reading import MachineField, index_number, optional, some_text, uuid, whole_number
from partage.units import MIB

EMPTY_KEYS = ("gi", "profile", "start", "size")
MIG_KEYS = ("gi", "ci", "profile", "start", "size", "uuid", "memory_bytes", "gi_minor", "ci_minor")
_HIGHEST_SLICE = 63


@dataclass(frozen=True, slots=True)
class _Seat:
    """What a row of ``mig_devices`` has to say."""

    profile: MigProfile
    gi: int
    ci: int
    start: int


def read_instances(
    row: MachineField, gpu: Gpu, *, strict: bool
) -> tuple[tuple[MigDevice, ...], tuple[EmptyInstance, ...]]:
    """MIG devices in the order of the file, which is NVML's index, and the GPU instances without any.

    Nothing after problems.
    """
    before = len(row.problems)
    rows = list(row.at("mig_devices").rows())
    devices = [_mig_device(place, gpu, index, strict=strict) for index, place in enumerate(rows)]
    empty = [_empty_instance(place, gpu, strict=strict) for place in row.at("empty_instances").rows()]
    if len(row.problems) > before:
        return (), ()
    whole, hosts = tuple(filter(None, devices)), tuple(filter(None, empty))
    for fault in together_faults(geometry_of(gpu), whole, hosts):
        row.at("mig_devices" if whole else "empty_instances").wrong(fault)
    return whole, tuple(sorted(hosts, key=lambda one: one.gi_id))


def _empty_instance(place: MachineField, gpu: Gpu, *, strict: bool) -> EmptyInstance | None:
    if strict:
        place.only(EMPTY_KEYS)
    profile, gi = place.needed("profile", _profile), place.needed("gi", index_number)
    start = place.needed("start", _slice)
    if profile is None or gi is None or start is None:
        return None
    if profile != profile.gpu_instance:
        place.at("profile").wrong(f"{profile} is a MIG device, not a GPU instance")
        return None
    placement = _placement(place, gpu, profile, start)
    return EmptyInstance(gi, str(profile), placement) if placement else None


def _mig_device(place: MachineField, gpu: Gpu, index: int, *, strict: bool) -> MigDevice | None:
    if strict:
        place.only(MIG_KEYS)
    seat = _seat(place)
    span = _span(place, gpu, seat) if seat else None
    if seat is None or span is None:
        return None
    placement, memory_bytes = span
    return MigDevice(
        uuid=place.read("uuid", derived_uuid("MIG", gpu.uuid, "file", seat.gi, seat.ci), uuid),
        index=index,
        gi_id=seat.gi,
        ci_id=seat.ci,
        profile=str(seat.profile),
        placement=placement,
        memory_bytes=place.whole("memory_bytes", memory_bytes, MIB),
        gi_minor=_minor(place, "gi_minor", gi_minor(gpu.minor, seat.gi)),
        ci_minor=_minor(place, "ci_minor", ci_minor(gpu.minor, seat.gi, seat.ci)),
    )


def _minor(place: MachineField, key: str, derived: int) -> int | None:
    """What the file says, null included; the arithmetic where it says nothing."""
    said: int | None = derived
    return place.read(key, said, optional(whole_number))


def _seat(place: MachineField) -> _Seat | None:
    profile = place.needed("profile", _profile)
    numbers = [place.needed(key, parse) for key, parse in _SEAT_NUMBERS.items()]
    gi, ci, start = numbers
    if profile is None or gi is None or ci is None or start is None:
        return None
    return _Seat(profile, gi, ci, start)


def _slice(value: Value) -> int:
    return whole_number(value, 0, _HIGHEST_SLICE)


_SEAT_NUMBERS: dict[str, Callable[[Value], int]] = {
    "gi": index_number,
    "ci": index_number,
    "start": _slice,
}


def _profile(value: Value) -> MigProfile:
    return MigProfile.parse(some_text(value))


def _span(place: MachineField, gpu: Gpu, seat: _Seat) -> tuple[Placement, int] | None:
    """Placement and memory of the GPU instance; None, with a problem put down, where it cannot sit there."""
    placement = _placement(place, gpu, seat.profile, seat.start, "size and memory_bytes are")
    geometry = geometry_of(gpu)
    spec = geometry.spec(seat.profile) if geometry else None
    if placement is None:
        return None
    if geometry is None or spec is None:
        if place.has("memory_bytes"):
            return placement, 0
        place.wrong(f"memory_bytes is needed: the catalogue knows no placements of {gpu.product}")
        return None
    return placement, instance_memory(spec, geometry, gpu.memory_bytes)


def _placement(
    place: MachineField, gpu: Gpu, profile: MigProfile, start: int, needs: str = "size is"
) -> Placement | None:
    """Where a GPU instance sits; None, with a problem put down, where it cannot be there."""
    geometry = geometry_of(gpu)
    spec = geometry.spec(profile) if geometry else None
    size = place.whole("size", spec.size if spec else 0, 1, _HIGHEST_SLICE + 1)
    if geometry is None:
        if size:
            return Placement(start, size)
        place.wrong(f"{needs} needed: the catalogue knows no placements of {gpu.product}")
        return None
    placement = Placement(start, max(size, 1))
    fault = device_fault(geometry, profile, placement)
    if fault or spec is None:
        place.wrong(fault or f"{geometry.model} has no profile {profile}")
        return None
    return placement

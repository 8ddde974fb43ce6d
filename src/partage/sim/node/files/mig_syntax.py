"""Reads the MIG instances of a machine file. What a row leaves out follows from the GPU's model."""

from __future__ import annotations

from collections.abc import Callable

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.safeyaml import Value
from partage.model.geometry import instance_memory
from partage.model.gpu import EmptyInstance, Gpu, MigDevice
from partage.model.placement import Placement
from partage.model.profile import MigProfile
from partage.sim.node.files.mig_checks import device_problem, layout_problems
from partage.sim.node.files.reading import MachineField, index_number, optional, some_text, uuid, whole_number
from partage.sim.node.machine import derived_uuid
from partage.sim.node.mig import ci_minor, gi_minor
from partage.units import MIB
from partage.values import Frozen

EMPTY_KEYS = ("gi", "profile", "start", "size")
MIG_KEYS = ("gi", "ci", "profile", "start", "size", "uuid", "memory_bytes", "gi_minor", "ci_minor")
_HIGHEST_SLICE = 63


class _Needed(Frozen):
    """The values that a row of ``mig_devices`` must have."""

    profile: MigProfile
    gi: int
    ci: int
    start: int


def read_instances(
    row: MachineField, gpu: Gpu, *, strict: bool
) -> tuple[tuple[MigDevice, ...], tuple[EmptyInstance, ...]]:
    """MIG devices in the order of the file, which is NVML's index, and GPU instances without MIG devices.

    Both are empty if the rows have problems.
    """
    before = len(row.problems)
    rows = list(row.at("mig_devices").rows())
    devices = [_mig_device(place, gpu, index, strict=strict) for index, place in enumerate(rows)]
    empty = [_empty_instance(place, gpu, strict=strict) for place in row.at("empty_instances").rows()]
    if len(row.problems) > before:
        return (), ()
    whole, hosts = tuple(filter(None, devices)), tuple(filter(None, empty))
    for problem in layout_problems(geometry_of(gpu), whole, hosts):
        row.at("mig_devices" if whole else "empty_instances").wrong(problem)
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
    needed = _needed(place)
    found = _placement_and_memory(place, gpu, needed) if needed else None
    if needed is None or found is None:
        return None
    placement, memory_bytes = found
    return MigDevice(
        uuid=place.read("uuid", derived_uuid("MIG", gpu.uuid, "file", needed.gi, needed.ci), uuid),
        index=index,
        gi_id=needed.gi,
        ci_id=needed.ci,
        profile=str(needed.profile),
        placement=placement,
        memory_bytes=place.whole("memory_bytes", memory_bytes, MIB),
        gi_minor=_minor(place, "gi_minor", gi_minor(gpu.minor, needed.gi)),
        ci_minor=_minor(place, "ci_minor", ci_minor(gpu.minor, needed.gi, needed.ci)),
    )


def _minor(place: MachineField, key: str, derived: int) -> int | None:
    """The value of the file, which may be null; the derived number where the key is missing."""
    default: int | None = derived
    return place.read(key, default, optional(whole_number))


def _needed(place: MachineField) -> _Needed | None:
    profile = place.needed("profile", _profile)
    numbers = [place.needed(key, parse) for key, parse in _NUMBERS.items()]
    gi, ci, start = numbers
    if profile is None or gi is None or ci is None or start is None:
        return None
    return _Needed(profile, gi, ci, start)


def _slice(value: Value) -> int:
    return whole_number(value, 0, _HIGHEST_SLICE)


_NUMBERS: dict[str, Callable[[Value], int]] = {
    "gi": index_number,
    "ci": index_number,
    "start": _slice,
}


def _profile(value: Value) -> MigProfile:
    return MigProfile.parse(some_text(value))


def _placement_and_memory(place: MachineField, gpu: Gpu, needed: _Needed) -> tuple[Placement, int] | None:
    """Placement and memory of the GPU instance; None, and a problem, where it cannot be there."""
    placement = _placement(place, gpu, needed.profile, needed.start, "size and memory_bytes are")
    geometry = geometry_of(gpu)
    spec = geometry.spec(needed.profile) if geometry else None
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
    """The placement of a GPU instance; None, and a problem, where it cannot be there."""
    geometry = geometry_of(gpu)
    spec = geometry.spec(profile) if geometry else None
    size = place.whole("size", spec.size if spec else 0, 1, _HIGHEST_SLICE + 1)
    if geometry is None:
        if size:
            return Placement(start, size)
        place.wrong(f"{needs} needed: the catalogue knows no placements of {gpu.product}")
        return None
    placement = Placement(start, max(size, 1))
    problem = device_problem(geometry, profile, placement)
    if problem or spec is None:
        place.wrong(problem or f"{geometry.model} has no profile {profile}")
        return None
    return placement

"""Reads what a machine file says of MIG: what it allows on a GPU, as the GPU's driver said it (``mig-
geometry``), and the instances, which have to be possible there. What a row leaves out follows from the
GPU's model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partage.codec.fields import Field, Table
from partage.codec.reader import number, parsed
from partage.edges.files.catalogue import geometry_of
from partage.model.geometry import (
    ENGINE_KINDS,
    Engines,
    Geometry,
    MigProfile,
    Placement,
    ProfileSpec,
    driver_geometry,
    instance_memory,
)
from partage.model.gpu import EmptyInstance, Gpu, MigDevice
from partage.model.ids import MigUuid
from partage.model.layout import DoesNotFit, LayoutItem, compute_choices, place
from partage.sim.node.files.value_syntax import mig_uuid, read_index
from partage.sim.node.machine import derived_uuid
from partage.sim.node.mig import ci_minor, gi_minor
from partage.units import MIB
from partage.values import Frozen, grouped


def device_problem(geometry: Geometry, profile: MigProfile, placement: Placement) -> str | None:
    """Why no MIG device of that profile can have that placement; None where one can."""
    try:
        place(geometry, [LayoutItem(profile, placement.start)])
    except DoesNotFit as error:
        return str(error)
    spec = geometry.spec(profile)
    if spec is not None and spec.size != placement.size:
        return f"{spec.profile} occupies {spec.size} memory slices of {geometry.model}, not {placement.size}"
    return None


def layout_problems(
    geometry: Geometry | None, devices: Sequence[MigDevice], empty: Sequence[EmptyInstance] = ()
) -> Iterator[str]:
    """Why these MIG devices and empty GPU instances cannot exist together; each alone is possible."""
    hosts = grouped((device.gi_id, device) for device in devices)
    unclear = [gi for gi, members in hosts.items() if len({_host(device) for device in members}) > 1]
    if unclear:
        yield f"GPU instance {unclear[0]} has several profiles or places"
        return
    for gi, members in hosts.items():
        yield from _instance_problems(gi, members)
    ids = [*hosts, *(instance.gi_id for instance in empty)]
    if len(set(ids)) < len(ids):
        yield "an empty GPU instance has an id that another one has"
        return
    instances: list[MigDevice | EmptyInstance] = [*(members[0] for members in hosts.values()), *empty]
    if geometry is None:
        yield from _overlaps(instances)
        return
    try:
        place(geometry, [LayoutItem(*_host(instance)) for instance in instances])
    except DoesNotFit as error:
        yield str(error)


def _host(device: MigDevice | EmptyInstance) -> tuple[MigProfile, int]:
    return MigProfile.parse(device.profile).gpu_instance, _place(device).start


def _place(device: MigDevice | EmptyInstance) -> Placement:
    return device.known_placement if isinstance(device, MigDevice) else device.placement


def _instance_problems(gi: int, members: Sequence[MigDevice]) -> Iterator[str]:
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
            if _place(device).overlaps(_place(other)):
                yield f"GPU instances {other.gi_id} and {device.gi_id} overlap"


_KEYS = ("most-instances", "profiles")
_PROFILE_KEYS = ("profile", "slices", "size", "starts", "count", "memory-bytes", "engines")
_MOST_SLICES, _MOST_PROFILES = 64, 64
_PROFILE = "a GPU instance profile such as 3g.40gb"


def read_geometry(place: Field, model: str) -> Geometry | None:
    """The geometry; None where problems leave none. model: product of the GPU."""
    row = place.table(_KEYS)
    if row is None:
        return None
    before = place.notes.errors
    places = row.needed("profiles", lambda field: field.items(at_most=_MOST_PROFILES)) or []
    specs = [spec for field in places if (spec := _spec(field))]
    _each_once(row, specs)
    most = row.value("most-instances", _amount, 0)
    if place.notes.errors > before:
        return None
    geometry = driver_geometry(model, specs, most)
    if geometry is None:
        row.here("profiles").error("has to name at least one profile")
    return geometry


def _spec(place: Field) -> ProfileSpec | None:
    row = place.table(_PROFILE_KEYS)
    if row is None:
        return None
    profile, starts = row.needed("profile", _geometry_profile), row.needed("starts", _starts)
    size = row.needed("size", _amount)
    if profile is None or size is None or not starts:
        return None
    return ProfileSpec(
        profile=profile,
        compute_slices=row.value("slices", _amount, profile.gpu_slices),
        size=size,
        starts=starts,
        preferred_starts=starts,
        max_count=row.value("count", _amount, len(starts)),
        memory_bytes=row.nullable("memory-bytes", number(0), None),
        engines=row.nullable("engines", _engines, None),
    )


def _each_once(row: Table, specs: Sequence[ProfileSpec]) -> None:
    names = [str(spec.profile) for spec in specs]
    for name in sorted({name for name in names if names.count(name) > 1}):
        row.here("profiles").error(f"profile {name} occurs twice")


def _geometry_profile(field: Field) -> MigProfile | None:
    profile = field.parsed(MigProfile.parse, "3g.40gb")
    if profile is not None and profile != profile.gpu_instance:
        field.unfit(_PROFILE)
        return None
    return profile


def _starts(field: Field) -> tuple[int, ...] | None:
    items = field.items(at_most=_MOST_SLICES)
    if items is None:
        return None
    if not items:
        field.error("has to name at least one first memory slice", "starts: [0]")
    numbers = [item.integer(0, _MOST_SLICES - 1) for item in items]
    return tuple(sorted({number for number in numbers if number is not None}))


def _amount(field: Field) -> int | None:
    return field.integer(1, _MOST_SLICES)


def _engines(field: Field) -> Engines | None:
    row = field.table(ENGINE_KINDS)
    if row is None:
        return None
    return Engines(**{kind: row.nullable(kind, number(0), None) for kind in ENGINE_KINDS})


EMPTY_KEYS = ("gi", "profile", "start", "size")
MIG_KEYS = (
    "gi",
    "ci",
    "profile",
    "start",
    "size",
    "uuid",
    "memory-bytes",
    "gi-minor",
    "ci-minor",
    "multiprocessors",
)
_HIGHEST_SLICE = 63


_slice = number(0, _HIGHEST_SLICE)
_profile = parsed(MigProfile.parse, "3g.40gb")


class _Needed(Frozen):
    """The values that a row of ``mig-devices`` must have."""

    profile: MigProfile
    gi: int
    ci: int
    start: int


def read_instances(row: Table, gpu: Gpu) -> tuple[tuple[MigDevice, ...], tuple[EmptyInstance, ...]]:
    """MIG devices in the order of the file, which is NVML's index, and GPU instances without MIG devices.

    Both are empty if the rows have problems.
    """
    notes = row.whole.notes
    before = notes.errors
    rows = [place.table(MIG_KEYS) for place in row.value("mig-devices", Field.items, [])]
    devices = [_mig_device(table, gpu, index) for index, table in enumerate(rows) if table]
    rows = [place.table(EMPTY_KEYS) for place in row.value("empty-instances", Field.items, [])]
    empty = [_empty_instance(table, gpu) for table in rows if table]
    if notes.errors > before:
        return (), ()
    whole, hosts = tuple(filter(None, devices)), tuple(filter(None, empty))
    for problem in layout_problems(geometry_of(gpu), whole, hosts):
        row.here("mig-devices" if whole else "empty-instances").error(problem)
    return whole, tuple(sorted(hosts, key=lambda instance: instance.gi_id))


def _empty_instance(row: Table, gpu: Gpu) -> EmptyInstance | None:
    profile, gi = row.needed("profile", _profile), row.needed("gi", read_index)
    start = row.needed("start", _slice)
    if profile is None or gi is None or start is None:
        return None
    if profile != profile.gpu_instance:
        row.here("profile").error(f"{profile} is a MIG device, not a GPU instance")
        return None
    placement = _placement(row, gpu, profile, start)
    return EmptyInstance(gi, str(profile), placement) if placement else None


def _mig_device(row: Table, gpu: Gpu, index: int) -> MigDevice | None:
    needed = _needed(row)
    found = _placement_and_memory(row, gpu, needed) if needed else None
    if needed is None or found is None:
        return None
    placement, memory_bytes = found
    return MigDevice(
        uuid=row.value(
            "uuid", mig_uuid, MigUuid(derived_uuid("MIG", gpu.uuid, "file", needed.gi, needed.ci))
        ),
        index=index,
        gi_id=needed.gi,
        ci_id=needed.ci,
        profile=str(needed.profile),
        placement=placement,
        memory_bytes=row.value("memory-bytes", number(MIB), memory_bytes),
        gi_minor=row.nullable("gi-minor", number(0), gi_minor(gpu.minor, needed.gi)),
        ci_minor=row.nullable("ci-minor", number(0), ci_minor(gpu.minor, needed.gi, needed.ci)),
        multiprocessors=row.nullable("multiprocessors", number(0), None),
    )


def _needed(row: Table) -> _Needed | None:
    profile = row.needed("profile", _profile)
    gi, ci = row.needed("gi", read_index), row.needed("ci", read_index)
    start = row.needed("start", _slice)
    if profile is None or gi is None or ci is None or start is None:
        return None
    return _Needed(profile, gi, ci, start)


def _placement_and_memory(row: Table, gpu: Gpu, needed: _Needed) -> tuple[Placement, int] | None:
    """Placement and memory of the GPU instance; None, and a problem, where it cannot be there."""
    placement = _placement(row, gpu, needed.profile, needed.start, "size and memory-bytes are")
    geometry = geometry_of(gpu)
    spec = geometry.spec(needed.profile) if geometry else None
    if placement is None:
        return None
    if geometry is None or spec is None:
        if "memory-bytes" in row:
            return placement, 0
        row.whole.error(f"memory-bytes is needed: the catalogue knows no placements of {gpu.product}")
        return None
    return placement, instance_memory(spec, geometry, gpu.memory_bytes)


def _placement(
    row: Table, gpu: Gpu, profile: MigProfile, start: int, needs: str = "size is"
) -> Placement | None:
    """The placement of a GPU instance; None, and a problem, where it cannot be there."""
    geometry = geometry_of(gpu)
    spec = geometry.spec(profile) if geometry else None
    size = row.value("size", number(1, _HIGHEST_SLICE + 1), spec.size if spec else 0)
    if geometry is None:
        if size:
            return Placement(start, size)
        row.whole.error(f"{needs} needed: the catalogue knows no placements of {gpu.product}")
        return None
    placement = Placement(start, max(size, 1))
    problem = device_problem(geometry, profile, placement)
    if problem or spec is None:
        row.whole.error(problem or f"{geometry.model} has no profile {profile}")
        return None
    return placement

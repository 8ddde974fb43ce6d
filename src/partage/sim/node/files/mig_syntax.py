"""Reads the MIG instances of a machine file. What a row leaves out follows from the GPU's model."""

from __future__ import annotations

from partage.codec.fields import Field, Table
from partage.codec.reader import number, parsed
from partage.edges.files.catalogue import geometry_of
from partage.model.geometry import instance_memory
from partage.model.gpu import EmptyInstance, Gpu, MigDevice
from partage.model.ids import MigUuid
from partage.model.placement import Placement
from partage.model.profile import MigProfile
from partage.sim.node.files.identifiers import mig_uuid, read_index
from partage.sim.node.files.mig_checks import device_problem, layout_problems
from partage.sim.node.machine import derived_uuid
from partage.sim.node.mig import ci_minor, gi_minor
from partage.units import MIB
from partage.values import Frozen

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
    devices = [_mig_device(one, gpu, index) for index, one in enumerate(rows) if one]
    rows = [place.table(EMPTY_KEYS) for place in row.value("empty-instances", Field.items, [])]
    empty = [_empty_instance(one, gpu) for one in rows if one]
    if notes.errors > before:
        return (), ()
    whole, hosts = tuple(filter(None, devices)), tuple(filter(None, empty))
    for problem in layout_problems(geometry_of(gpu), whole, hosts):
        row.here("mig-devices" if whole else "empty-instances").error(problem)
    return whole, tuple(sorted(hosts, key=lambda one: one.gi_id))


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

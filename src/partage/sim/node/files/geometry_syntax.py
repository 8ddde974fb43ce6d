"""Reads what MIG allows on a GPU of a machine file, as its driver said it (``mig-geometry``)."""

from __future__ import annotations

from collections.abc import Sequence

from partage.codec.fields import Field, Table
from partage.codec.reader import number
from partage.model.driver_geometry import driver_geometry
from partage.model.geometry import ENGINE_KINDS, Engines, Geometry, ProfileSpec
from partage.model.profile import MigProfile

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
    specs = [spec for one in places if (spec := _spec(one))]
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
    profile, starts = row.needed("profile", _profile), row.needed("starts", _starts)
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


def _profile(field: Field) -> MigProfile | None:
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

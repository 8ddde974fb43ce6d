"""What MIG allows on a GPU, from what its driver says of each profile. For GPUs that no catalogue knows.

A driver gives profiles, possible placements, counts and engines. What it does not give follows from them: the
slices of the GPU, and the order in which starts are tried.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from partage.model.geometry import ENGINE_KINDS, Engines, Geometry, ProfileSpec


def driver_geometry(model: str, profiles: Sequence[ProfileSpec], most_instances: int) -> Geometry | None:
    """The geometry of a GPU with these profiles; None if no profile has a place.

    model: the GPU's product. ``preferred_starts`` of the profiles is not read. most_instances: how many GPU
    instances the driver allows; the count of a profile can be more.
    """
    placed = tuple(spec for spec in profiles if spec.starts and spec.size > 0 and spec.max_count > 0)
    if not placed:
        return None
    geometry = Geometry(
        model=model,
        compute_slices=max(spec.compute_slices for spec in placed),
        memory_slices=max(spec.starts[-1] + spec.size for spec in placed),
        max_instances=max(most_instances, *(spec.max_count for spec in placed)),
        profiles=tuple(replace(spec, preferred_starts=preferred_starts(spec, placed)) for spec in placed),
        from_driver=True,
    )
    return _with_sound_engines(geometry)


def preferred_starts(spec: ProfileSpec, profiles: Sequence[ProfileSpec]) -> tuple[int, ...]:
    """The starts of a profile, those first that leave the most places of other profiles free."""

    def blocked(start: int) -> int:
        end = start + spec.size
        return sum(other < end and start < other + one.size for one in profiles for other in one.starts)

    return tuple(sorted(spec.starts, key=lambda start: (blocked(start), start)))


def _with_sound_engines(geometry: Geometry) -> Geometry:
    """Without the engines of a kind that instances share: there the driver allows more instances of a profile
    than its engines would allow."""
    whole = geometry.whole.engines
    shared = [kind for kind in ENGINE_KINDS if whole and _is_shared(geometry, kind, getattr(whole, kind))]
    if not shared:
        return geometry
    nothing = dict.fromkeys(shared)
    return replace(
        geometry,
        profiles=tuple(
            replace(spec, engines=replace(spec.engines or Engines(), **nothing)) for spec in geometry.profiles
        ),
    )


def _is_shared(geometry: Geometry, kind: str, total: int | None) -> bool:
    amounts = [
        (spec.max_count, getattr(spec.engines, kind) or 0) for spec in geometry.profiles if spec.engines
    ]
    return total is not None and any(count * amount > total for count, amount in amounts)

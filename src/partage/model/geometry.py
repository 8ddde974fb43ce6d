"""What MIG allows on one GPU model: profiles, placements, slices, engines; and how that follows from what a
driver says, for GPUs that no catalogue knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from partage.model.profile import MigProfile
from partage.units import MIB
from partage.values import Frozen


class Engines(Frozen):
    """Media and copy engines of a profile or of a whole GPU. None: the number is not published."""

    copy: int | None = 0
    decoder: int | None = 0
    encoder: int | None = 0
    jpeg: int | None = 0
    ofa: int | None = 0


ENGINE_KINDS = Engines.__struct_fields__
"""Field names of ``Engines``."""


class ProfileSpec(Frozen):
    """One GPU instance profile of one model.

    starts: possible first memory slices, ascending. size: number of memory slices.
    preferred_starts: the starts in the order in which placing tries them (``model.layout``).
    memory_bytes, engines, multiprocessors: None if no source gives them. smi_id: the number that ``nvidia-smi
    mig -lgip`` prints for it; it means another profile on another model. None: not known.
    """

    profile: MigProfile
    compute_slices: int
    size: int
    starts: tuple[int, ...]
    preferred_starts: tuple[int, ...]
    max_count: int
    memory_bytes: int | None = None
    engines: Engines | None = None
    multiprocessors: int | None = None
    smi_id: int | None = None


class MisprintedLayout(Frozen):
    """A layout that a provider publishes for a model that cannot have it, and the layout that was meant.

    source: who publishes it, ``FPT's table for the H200``. name: the layout's published name; None: it has
    none.
    listed: the MIG devices as printed; right: the MIG devices that were meant.
    """

    source: str
    name: str | None
    listed: tuple[MigProfile, ...]
    right: tuple[MigProfile, ...]


class Geometry(Frozen):
    """What one GPU model allows. model: id in the catalogue, ``h100-sxm5-80gb``.

    from_driver: the driver of the GPU said it (``model.driver_geometry``), and ``model`` is its product.
    """

    model: str
    compute_slices: int
    memory_slices: int
    max_instances: int
    profiles: tuple[ProfileSpec, ...]
    misnamed: tuple[MisprintedLayout, ...] = ()
    from_driver: bool = False

    def spec(self, profile: MigProfile) -> ProfileSpec | None:
        """The GPU instance profile of ``profile`` (its ``gpu_instance``), or None."""
        wanted = profile.gpu_instance
        return next((spec for spec in self.profiles if spec.profile == wanted), None)

    @property
    def whole(self) -> ProfileSpec:
        """The profile that takes the whole GPU; its engines are all that the GPU has."""
        return max(self.profiles, key=lambda spec: (spec.compute_slices, not spec.profile.attributes))


def instance_memory(spec: ProfileSpec, geometry: Geometry, total_bytes: int) -> int:
    """Memory of one GPU instance in bytes. Where no source says it: its part of the total, in whole MiB."""
    if spec.memory_bytes is not None:
        return spec.memory_bytes
    return total_bytes * spec.size // geometry.memory_slices // MIB * MIB


class Placement(Frozen, order=True):
    """The memory slices of one GPU instance.

    start: first memory slice, from 0.
    size:  number of memory slices, at least 1. Not the "3" of a 3g profile: on an H100 a 3g instance has 4
    of the 8 memory slices.

    Raises ValueError for other numbers. Source: nvml.h, nvmlGpuInstancePlacement_t.
    """

    start: int
    size: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.size < 1:
            raise ValueError(f"not a placement: start {self.start}, size {self.size}")

    @property
    def slices(self) -> range:
        """The memory slices."""
        return range(self.start, self.start + self.size)

    def overlaps(self, other: Placement) -> bool:
        """Whether both contain the same memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"


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
        return sum(
            other < end and start < other + profile.size for profile in profiles for other in profile.starts
        )

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

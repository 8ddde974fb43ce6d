"""What one GPU model allows under MIG: profiles, placements, budgets."""

from __future__ import annotations

from dataclasses import dataclass, fields

from partage.model.profile import MigProfile


@dataclass(frozen=True, slots=True)
class Engines:
    """Media and copy engines, of a profile or of a whole GPU. None: no source says how many."""

    copy: int | None = 0
    decoder: int | None = 0
    encoder: int | None = 0
    jpeg: int | None = 0
    ofa: int | None = 0


ENGINE_KINDS = tuple(field.name for field in fields(Engines))
"""The fields of ``Engines``."""


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """One GPU instance profile of one model.

    starts: possible first memory slices, ascending; size: memory slices. preferred_starts: the order of the
    greedy rule that needs no search (facts f). memory_bytes, engines: None where no source is known.
    smi_id: the id that nvidia-smi prints and creation takes; nvml_profile: the constant that queries take.
    """

    profile: MigProfile
    nvml_profile: int
    smi_id: int
    compute_slices: int
    size: int
    starts: tuple[int, ...]
    preferred_starts: tuple[int, ...]
    max_count: int
    memory_bytes: int | None = None
    engines: Engines | None = None


@dataclass(frozen=True, slots=True)
class MisprintedLayout:
    """A layout that somebody publishes for a model that cannot have it, and what was meant.

    source: who says so, ``FPT's table for the H200``. name: what the layout is called there, None: nothing.
    listed: the MIG devices as printed there; right: those of the layout that was meant.
    """

    source: str
    name: str | None
    listed: tuple[MigProfile, ...]
    right: tuple[MigProfile, ...]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What one GPU model allows. model: the catalogue's id, ``h100-sxm5-80gb``."""

    model: str
    compute_slices: int
    memory_slices: int
    max_instances: int
    profiles: tuple[ProfileSpec, ...]
    misnamed: tuple[MisprintedLayout, ...] = ()

    def spec(self, profile: MigProfile) -> ProfileSpec | None:
        """The GPU instance profile for ``profile`` (its ``gpu_instance``), or None."""
        wanted = profile.gpu_instance
        return next((spec for spec in self.profiles if spec.profile == wanted), None)

    @property
    def whole(self) -> ProfileSpec:
        """The profile that takes the whole GPU: its engines are all that there are."""
        return max(self.profiles, key=lambda spec: (spec.compute_slices, not spec.profile.attributes))

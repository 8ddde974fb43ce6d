"""What MIG allows on one GPU model: profiles, placements, slices, engines."""

from __future__ import annotations

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

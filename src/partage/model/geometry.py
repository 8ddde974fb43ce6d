"""What MIG allows on one GPU model: profiles and their names, placements, slices, engines; and how that
follows from what a driver says, for GPUs that no catalogue knows.

Names of profiles: ``3g.40gb``, ``1g.10gb+me``, ``1c.3g.40gb``, ``1g.24gb-me``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from partage.units import GIB, MIB
from partage.values import Frozen

_PROFILE = re.compile(
    r"(?:(?P<c>\d+)c\.)?(?P<g>\d+)g\.(?P<gb>\d+)gb(?:\+(?P<plus>[a-z][a-z0-9.,]*)|(?P<minus>-me))?", re.ASCII
)
_LONGEST = 40


class MigProfile(Frozen, order=True):
    """A MIG profile, as its name has it.

    compute_slices: the ``1`` of ``1c.3g.40gb``; equal to gpu_slices if there is no ``c``.
    gpu_slices: the ``3``. gigabytes: the ``40``, a rounded part of the GPU's memory, not the real size.
    attributes: ``("me",)`` for ``+me``, ``("-me",)`` for ``-me``; sorted.
    """

    gpu_slices: int
    gigabytes: int
    compute_slices: int
    attributes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> MigProfile:
        """Inverse of ``str``; a redundant ``c`` (``3c.3g.40gb``) is dropped. Raises ValueError."""
        match = _PROFILE.fullmatch(text) if len(text) <= _LONGEST else None
        if match is None:
            fits = len(text) < _LONGEST and _PROFILE.fullmatch(meant := f"{text.lower().removesuffix('b')}b")
            hint = f": did you mean {meant!r}?" if fits else ""
            raise ValueError(f"{text[:_LONGEST]!r} is not a MIG profile such as 3g.40gb or 1g.10gb+me{hint}")
        g, c = int(match["g"]), int(match["c"] or match["g"])
        plus = tuple(sorted(set((match["plus"] or "").split(",")) - {""}))
        if not 1 <= c <= g or (match["plus"] is not None and not plus):
            raise ValueError(f"{text!r} is not a MIG profile: {c} compute slices of {g}")
        return cls(g, int(match["gb"]), c, ("-me",) if match["minus"] else plus)

    @property
    def gpu_instance(self) -> MigProfile:
        """The profile of its GPU instance: ``3g.40gb`` for ``1c.3g.40gb``."""
        return MigProfile(self.gpu_slices, self.gigabytes, self.gpu_slices, self.attributes)

    def __str__(self) -> str:
        c = "" if self.compute_slices == self.gpu_slices else f"{self.compute_slices}c."
        tail = ",".join(self.attributes)
        if tail and tail != "-me":
            tail = f"+{tail}"
        return f"{c}{self.gpu_slices}g.{self.gigabytes}gb{tail}"


def named_gigabytes(instance_bytes: int, total_bytes: int) -> int:
    """The ``40`` in 3g.40gb, as NVIDIA's tools compute it. instance_bytes: memory of the GPU instance;
    total_bytes: memory of the GPU.

    The instance's memory in eighths of the total, rounded up, times the total in whole GiB, rounded up;
    halves are rounded up (1g of 180 GiB: 22.5, so 1g.23gb; Python's ``round`` gives 22). It is not the real
    memory: 1g.12gb of an H100 NVL has 10.75 GiB. Integrated GPUs report a total of 0: ``1g.0gb``.
    """
    if total_bytes <= 0:
        return 0
    eighths = -(-instance_bytes * 8 // total_bytes)
    total_gib = -(-total_bytes // GIB)
    return (eighths * total_gib + 4) // 8


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
    def placed(self) -> bool:
        """It is known where instances can be."""
        return any(spec.starts for spec in self.profiles)

    @property
    def whole(self) -> ProfileSpec:
        """The profile that takes the whole GPU; its engines are all that the GPU has."""
        return max(self.profiles, key=lambda spec: (spec.compute_slices, not spec.profile.attributes))


UNKNOWN_DEVICE_ID = "0x00000000"
"""In place of a device id that is not known."""


class GpuModel(Frozen):
    """One GPU model.

    id:              in the catalogue, ``h100-sxm5-80gb``. products: names as NVML returns them, the usual
    one first.
    pci_device_ids:  device and vendor id, ``0x233010de``, in the order of ``products`` if there are as
    many; empty if none is known.
    memory_bytes:    total as the driver reports it, or computed from the name if no report is known.
    mig_branch:      first driver branch with MIG on this model; 0: not known.
    geometry:        None without MIG, and if no placements are published; ``no_geometry`` says which.
    sources:         where the facts are from: documents with their addresses, or what was printed where.
    """

    id: str
    products: tuple[str, ...]
    pci_device_ids: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    mig: bool = False
    mig_survives_reboot: bool = False
    mig_needs_reset: bool = False
    mig_branch: int = 0
    geometry: Geometry | None = None
    no_geometry: str = ""
    sources: tuple[str, ...] = ()

    def pci_device_id(self, product: str) -> str:
        """The device id of one of ``products``; the model's first one if that is not known."""
        if not self.pci_device_ids:
            return UNKNOWN_DEVICE_ID
        position = self.products.index(product) if product in self.products else 0
        return self.pci_device_ids[min(position, len(self.pci_device_ids) - 1)]


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

"""The answer of ``fits``: what a GPU model holds under MIG, and how else it can be shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from partage.answers.documents.document import Document, row
from partage.edges.files.catalogue import geometry_of, why_no_geometry
from partage.model.geometry import Engines, Geometry, ProfileSpec, instance_memory
from partage.model.gpu import Driver, Gpu, NoDriver
from partage.model.layout import compute_choices
from partage.packing.decide.openings import MaximalLayout, maximal_layouts
from partage.plan.offer.mps_shares import client_cap
from partage.text import counted
from partage.values import Frozen


class PlacementRows(Frozen):
    """A place for an instance, in memory slices."""

    starts: tuple[int, ...]
    size: int


class ProfileRow(Frozen):
    """One GPU instance profile. id: of ``nvidia-smi mig -lgip``. compute_instances: the compute slices that a
    compute instance in it can have. Null: not known.
    """

    profile: str
    id: int | None
    max_count: int
    memory_bytes: int
    multiprocessors: int | None
    compute_slices: int
    placements: PlacementRows
    engines: Engines | None
    compute_instances: tuple[int, ...]


class MigRow(Frozen):
    """What MIG allows on the model."""

    compute_slices: int
    memory_slices: int
    max_instances: int
    profiles: tuple[ProfileRow, ...]
    maximal_layouts: tuple[MaximalLayout, ...]


class FitsModelRow(Frozen):
    """One model. gpus: indexes on the machine. mig: null without MIG, and if its placements are not known;
    no_mig says which. sharing: how it can be shared besides, in sentences.
    """

    product: str
    model: str | None
    architecture: str
    compute_capability: str
    memory_bytes: int
    gpus: tuple[int, ...]
    mig: MigRow | None
    no_mig: str | None
    sharing: tuple[str, ...]


class FitsDocument(Document, kw_only=True):
    """The answer of ``fits``."""

    kind: Literal["Fits"] = "Fits"
    models: tuple[FitsModelRow, ...]


def fits_document(gpus: Sequence[Gpu], driver: Driver | NoDriver) -> FitsDocument:
    """The answer for all models among these GPUs."""
    return FitsDocument(models=tuple(_model_row(alike, driver) for alike in _by_model(gpus)))


def _by_model(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """GPUs of one model together, in the order of the first of each."""
    found: dict[tuple[str, str, int], list[Gpu]] = {}
    for gpu in gpus:
        found.setdefault((gpu.product, gpu.pci_device_id, gpu.memory_bytes), []).append(gpu)
    return list(found.values())


def _model_row(alike: Sequence[Gpu], driver: Driver | NoDriver) -> FitsModelRow:
    gpu = alike[0]
    geometry = geometry_of(gpu)
    return row(
        FitsModelRow,
        gpu,
        model=geometry.model if geometry else None,
        compute_capability="{}.{}".format(*gpu.compute_capability),
        gpus=tuple(same.index for same in alike),
        mig=None if geometry is None else _mig_row(geometry, gpu),
        no_mig=None if geometry else why_no_geometry(gpu),
        sharing=_sharing(gpu, driver),
    )


def _sharing(gpu: Gpu, driver: Driver | NoDriver) -> tuple[str, ...]:
    cap = client_cap(gpu.compute_capability, driver)
    return (
        "time-slicing: any number of shares, which take turns; none of them has memory of its own",
        f"MPS: up to {cap.clients} shares side by side, each with a limit of memory and of SMs",
        "exclusive: the whole GPU for one container",
    )


def _mig_row(geometry: Geometry, gpu: Gpu) -> MigRow:
    return row(
        MigRow,
        geometry,
        profiles=tuple(_profile_row(spec, geometry, gpu) for spec in geometry.profiles),
        maximal_layouts=maximal_layouts(geometry),
    )


def _profile_row(spec: ProfileSpec, geometry: Geometry, gpu: Gpu) -> ProfileRow:
    return row(
        ProfileRow,
        spec,
        profile=str(spec.profile),
        id=spec.smi_id,
        memory_bytes=instance_memory(spec, geometry, gpu.memory_bytes),
        placements=PlacementRows(spec.starts, spec.size),
        compute_instances=compute_choices(spec.compute_slices),
    )


def layout_words(layout: MaximalLayout) -> str:
    """``1 x 3g.40gb + 4 x 1g.10gb``."""
    return counted(name for name, count in layout.profiles.items() for _ in range(count))


def is_plain(profile: str) -> bool:
    """Whether a profile has no attributes (``+me``, ``-me``)."""
    return "+" not in profile and not profile.endswith("-me")

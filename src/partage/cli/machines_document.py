"""The answer of ``machines``: the GPU models of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from partage.answers.documents.document import Document, row
from partage.edges.files.catalogue import GpuModel
from partage.values import Frozen


class CatalogueRow(Frozen):
    """One model. products: as the driver names them. mig_profiles: () without MIG, and if they are not known.

    simulated: it can stand in --machine.
    """

    id: str
    products: tuple[str, ...]
    architecture: str
    compute_capability: str
    memory_bytes: int
    mig: bool
    mig_profiles: tuple[str, ...]
    pci_device_ids: tuple[str, ...]
    simulated: bool


class MachinesDocument(Document, kw_only=True):
    """The answer of ``machines``."""

    kind: Literal["Machines"] = "Machines"
    models: tuple[CatalogueRow, ...]


def machines_document(models: Iterable[GpuModel], simulated: Iterable[GpuModel]) -> MachinesDocument:
    """The rows of these models. simulated: those that can be simulated."""
    can = {model.id for model in simulated}
    return MachinesDocument(
        models=tuple(
            row(
                CatalogueRow,
                model,
                compute_capability="{}.{}".format(*model.compute_capability),
                mig_profiles=tuple(str(spec.profile) for spec in model.geometry.profiles)
                if model.geometry
                else (),
                simulated=model.id in can,
            )
            for model in models
        )
    )

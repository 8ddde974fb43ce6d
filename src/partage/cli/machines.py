"""``partage machines``: the GPU models that Partage knows, and how to name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import click

from partage.answers import common_options, common_output
from partage.answers.documents.document import Document, row
from partage.answers.verb import verb
from partage.model.geometry import GpuModel
from partage.values import Frozen

if TYPE_CHECKING:
    from rich.console import Console


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


@verb("machines")
@click.argument("model", required=False)
@common_options.output_option("table", "name", "json", "yaml")
def command(model: str | None, output: str) -> None:
    """List the GPU models that Partage knows, and how to name them; with MODEL, one of them.

    A name in the first column stands in --machine with a count before it: 8xh100-sxm5-80gb. Several are
    joined by +: 4xh200-141gb+4xl40s. For any other GPU write a machine file, or record one with partage
    record.

    Exit code 2: no such model.
    """
    from partage.edges.files.catalogue import load_catalogue
    from partage.errors import InputError

    catalogue = load_catalogue()
    chosen = catalogue.models
    if model is not None:
        found = catalogue.find(model)
        names = catalogue.variants(model) or ((found[0].id,) if found else ())
        if not names:
            raise InputError(f"no GPU model is called {model!r}", catalogue.advice(model))
        chosen = tuple(gpu_model for gpu_model in chosen if gpu_model.id in names)
    document = machines_document(chosen, catalogue.simulated_models())
    if output == "name":
        common_output.say_names(row.id for row in document.models)
    elif output != "table":
        common_output.print_document(document, output)
    elif len(document.models) == 1:
        _print_one(document.models[0], common_output.console())
    else:
        _print_all(document.models, common_output.console())


def _print_all(models: tuple[CatalogueRow, ...], console: Console) -> None:
    from partage.answers.render.tables import plain_table
    from partage.answers.wording import product_word
    from partage.units import format_bytes

    table = plain_table("GPU models", "Name", "Memory", "Architecture", "MIG", "Product", right=("Memory",))
    for model in models:
        product = product_word(model.products[0]) if model.products else "-"
        table.add_row(model.id, format_bytes(model.memory_bytes), model.architecture, _mig(model), product)
    console.print(table)
    console.print()
    console.print(
        "--machine 8xNAME simulates a node of eight; partage fits NAME shows its MIG devices", style="dim"
    )


def _mig(model: CatalogueRow) -> str:
    if not model.mig:
        return "no"
    return "yes" if model.mig_profiles else "yes, placements unknown"


def _print_one(model: CatalogueRow, console: Console) -> None:
    from partage.units import format_bytes

    console.print(
        f"{model.id}: {format_bytes(model.memory_bytes)}, {model.architecture}, "
        f"compute capability {model.compute_capability}",
        style="bold",
    )
    console.print(f"products: {', '.join(model.products) or 'not known'}")
    console.print(f"PCI device ids: {', '.join(model.pci_device_ids) or 'not known'}")
    console.print(f"MIG: {', '.join(model.mig_profiles) or _mig(model)}")
    if not model.simulated:
        console.print("It cannot stand in --machine: write a machine file with its MIG devices.")
        return
    console.print(f"to simulate it: partage show --machine 8x{model.id}")
    if model.mig_profiles:
        console.print(f"what fits on it: partage fits {model.id}")

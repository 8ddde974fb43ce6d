"""``partage fits``: which MIG devices fit on a GPU model, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from partage.answers import common_node, common_options, common_output
from partage.answers.verb import verb

if TYPE_CHECKING:
    from partage.model.gpu import Gpu, Inventory
    from partage.packing.document import FitsDocument


@verb("fits")
@click.argument("model", required=False)
@common_options.machine_option
@click.option("--picture", metavar="FILE", help="Also draw the layouts to a file: .svg or .png.")
@common_options.output_option("table", "json", "yaml")
def command(model: str | None, machine: str | None, picture: str | None, output: str) -> None:
    """Show which MIG devices fit on a GPU model, and where.

    MODEL is a name such as h100-sxm5-80gb (partage machines lists them) or a product name. Without it: the
    GPUs of this node, or of --machine.

    Shown are the MIG profiles with their memory, SMs, engines and possible placements, as nvidia-smi mig
    -lgip and -lgipp list them, and all layouts to which no device can be added. Memory and starts are in
    memory slices. For a model without MIG: how it can be shared instead.

    Exit code 2: no such model; 4: no usable driver.
    """
    if model is not None and machine is not None:
        raise click.UsageError("MODEL and --machine exclude each other")
    if picture is not None:
        from partage.answers.render.drawing import check_picture_name

        check_picture_name(picture)
    from partage.packing.document import fits_document

    inventory = common_node.need_driver(common_node.observe(machine) if model is None else _inventory(model))
    document = fits_document(inventory.gpus, inventory.driver)
    if picture is not None:
        _draw(document, inventory.gpus, picture)
    if output == "table":
        _print(document)
    else:
        common_output.print_document(document, output)


def _inventory(name: str) -> Inventory:
    """A simulated node with one GPU of that model. Raises InputError with the nearest names."""
    from partage.edges.files.catalogue import model_named
    from partage.sim.node.machine import new_gpu, simulated_inventory

    found = model_named(name, "--machine takes a whole node or a file")
    return simulated_inventory((new_gpu(0, *found, None),))


def _draw(document: FitsDocument, nodes: Sequence[Gpu], path: str) -> None:
    from partage.answers.render.drawing import picture_file
    from partage.answers.render.node_drawing import draw
    from partage.errors import Unsatisfiable
    from partage.packing.tables import pictured

    cards = pictured(document.models, nodes)
    if not cards:
        raise Unsatisfiable(
            "there is no MIG layout to draw", "; ".join(str(model.no_mig) for model in document.models)
        )
    products = ", ".join(model.product for model in document.models if model.mig)
    caption = (
        f"{products}: plain layouts to which no MIG device can be added, each with one of its placements"
    )
    common_output.write_file(path, picture_file(draw(cards, caption, "Layout"), path))


def _print(document: FitsDocument) -> None:
    from partage.packing.tables import fits_lines

    console = common_output.console()
    for number, model in enumerate(document.models):
        if number:
            console.print()
        for line in fits_lines(model, several=len(document.models) > 1):
            console.print(line)

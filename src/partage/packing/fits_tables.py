"""What fits on a GPU model, as tables, and its maximal layouts as cards of a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.answers.render.cards import DeviceBlock, GpuCard, ShareCell
from partage.answers.render.slices import slices_of
from partage.answers.render.tables import plain_table
from partage.answers.wording import product_word
from partage.edges.files.catalogue import geometry_of
from partage.model.geometry import ENGINE_KINDS
from partage.model.gpu import Gpu, Inventory, MigMode
from partage.model.layout import LayoutItem
from partage.model.policy import ALL_EXCLUSIVE
from partage.model.strategy import Strategy
from partage.packing.decide.maximal import MaximalLayout
from partage.packing.fits_document import (
    FitsModelRow,
    MigRow,
    ProfileRow,
    is_plain,
    layout_words,
)
from partage.packing.tables import compact_layout
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import assign
from partage.sim.node.machine import DRIVER
from partage.sim.node.mig import create_layout
from partage.text import count_of, counted, gpus, numbers
from partage.units import format_bytes

_ENGINES = "Copy/ Dec/ Enc/ JPEG/ OFA"
"""Heading of the engines, in the order of ``ENGINE_KINDS``."""


def fits_lines(model: FitsModelRow, *, several: bool) -> Iterator[RenderableType]:
    """The answer for one model. several: the machine has several models, so its GPUs are named."""
    where = f"{gpus(model.gpus)}: " if several else ""
    known = f" ({model.model})" if model.model else ""
    head = f"{where}{model.product}{known}, {model.architecture}, {format_bytes(model.memory_bytes)}"
    yield Text(head, style="bold")
    if model.mig is None:
        yield Text(f"{model.no_mig}. It can be shared in other ways:")
        yield from (Text(f"  {way}") for way in model.sharing)
        return
    yield Text(
        f"{model.mig.compute_slices} compute slices, {model.mig.memory_slices} memory slices, "
        f"at most {count_of(model.mig.max_instances, 'GPU instance')}; starts and sizes are in memory slices"
    )
    yield Text()
    yield profiles_table(model.mig)
    yield Text()
    yield layouts_table(model.mig)
    more = len(model.mig.maximal_layouts) - len(_plain_layouts(model.mig))
    if more:
        yield Text(f"and {more} with +me, +gfx or -me profiles; -o json lists them all", style="dim")


def profiles_table(mig: MigRow) -> Table:
    """The profiles, as ``nvidia-smi mig -lgip`` and ``-lgipp`` list them."""
    right = ("ID", "At most", "Memory", "SMs", "Compute")
    table = plain_table(
        "Profiles",
        "Profile",
        "ID",
        "At most",
        "Memory",
        "SMs",
        "Compute",
        "Starts: size",
        _ENGINES,
        right=right,
    )
    for one in mig.profiles:
        table.add_row(
            one.profile,
            _or_dash(one.id),
            str(one.max_count),
            format_bytes(one.memory_bytes),
            _or_dash(one.multiprocessors),
            str(one.compute_slices),
            f"{numbers(one.placements.starts)}: {one.placements.size}",
            _engines(one),
        )
    return table


def _engines(one: ProfileRow) -> str:
    if one.engines is None:
        return "-"
    return "/".join(_or_dash(getattr(one.engines, kind)) for kind in ENGINE_KINDS)


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def layouts_table(mig: MigRow) -> Table:
    """The maximal layouts of profiles without attributes; each with one placement, and how many it has."""
    shown = _plain_layouts(mig)
    table = plain_table(
        f"Layouts to which nothing can be added: {len(shown)}", "Devices", "One placement", "Placements",
        right=("Placements",),
    )  # fmt: skip
    for layout in shown:
        items = [LayoutItem.parse(item) for item in layout.layout]
        table.add_row(layout_words(layout), compact_layout(items), str(layout.ways))
    return table


def _plain_layouts(mig: MigRow) -> list[MaximalLayout]:
    return [layout for layout in mig.maximal_layouts if all(map(is_plain, layout.profiles))]


# --- the picture -------------------------------------------------------------------------------


def layout_cards(gpu: Gpu, mig: MigRow) -> list[GpuCard]:
    """One card for each layout of ``layouts_table``, in its order, numbered from 1."""
    return [_card(gpu, number, layout) for number, layout in enumerate(_plain_layouts(mig), start=1)]


def _card(gpu: Gpu, number: int, layout: MaximalLayout) -> GpuCard:
    geometry = geometry_of(gpu)
    assert geometry is not None, "a model without a geometry has no layouts"
    devices = create_layout(gpu, geometry, [LayoutItem.parse(item) for item in layout.layout], "")
    cut = replace(gpu, mig_mode=MigMode(True, True), mig_devices=devices, empty_instances=())
    inventory = Inventory(DRIVER, (cut,))
    offer = advertise(assign(ALL_EXCLUSIVE, inventory, geometry_of), inventory, ALL_EXCLUSIVE)[gpu.uuid]
    slices = slices_of(cut, offer, geometry)
    assert slices is not None, "every MIG device has its placement"
    blocks = tuple(
        DeviceBlock(instance.label, width, (ShareCell(None, 1),)) if instance else DeviceBlock("", width, ())
        for width, instance in slices.memory_row
    )
    sizes = counted(
        format_bytes(size) for size in sorted((one.memory_bytes for one in devices), reverse=True)
    )
    return GpuCard(
        index=number,
        product=product_word(gpu.product),
        sharing_text=count_of(len(devices), "MIG device"),
        strategy=Strategy.MIG,
        blocks=blocks,
        shares=f"{sizes}; {count_of(layout.ways, 'placement')}",
        guarantee="",
        slices=slices,
    )


def pictured(models: Sequence[FitsModelRow], nodes: Sequence[Gpu]) -> list[GpuCard]:
    """The cards of all models that have MIG."""
    by_index = {gpu.index: gpu for gpu in nodes}
    cards = [card for one in models if one.mig for card in layout_cards(by_index[one.gpus[0]], one.mig)]
    return [replace(card, index=number) for number, card in enumerate(cards, start=1)]

"""The answers of ``plan --demand`` and ``fits`` as tables; the maximal layouts of a GPU model as cards of a
picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.answers.render.cards import DeviceBlock, GpuCard, Mark, ShareCell
from partage.answers.render.slices import slices_of
from partage.answers.render.tables import plain_table
from partage.answers.wording import product_word
from partage.edges.files.catalogue import geometry_of
from partage.model.geometry import ENGINE_KINDS
from partage.model.gpu import Gpu, Inventory, MigMode
from partage.model.layout import LayoutItem
from partage.model.policy import ALL_EXCLUSIVE
from partage.model.strategy import Strategy
from partage.packing.decide.openings import MaximalLayout
from partage.packing.decide.pack import PackedGpu, Packing
from partage.packing.document import (
    FitsModelRow,
    MigRow,
    ProfileRow,
    demand_words,
    is_plain,
    layout_words,
    places,
    served_counts,
)
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import assign
from partage.sim.node.machine import DRIVER
from partage.sim.node.mig import create_layout
from partage.text import count_of, counted, gpus, numbers
from partage.units import format_bytes
from partage.values import Frozen, grouped

MOST_ROWS = 24


class _Kind(Frozen):
    product: str
    layout: str
    serves: str
    destroyed: str
    mode_change: bool


def packing_table(packing: Packing) -> tuple[Table, int]:
    """The table with the largest rows, and the number of GPUs in rows that are left out."""
    by_kind = grouped((_kind(assignment), assignment) for assignment in packing.assignments)
    changes = any(kind.destroyed for kind in by_kind)
    title = f"{demand_words(packing.demand.wanted)} on {packing.gpus_used} of {packing.available} GPUs"
    columns = ("GPUs", "Where", "Product", "Layout", "Serves", *(("Destroyed",) if changes else ()))
    table = plain_table(title, *columns, right=("GPUs",))
    rows = sorted(by_kind.items(), key=lambda row: -len(row[1]))
    for kind, members in rows[:MOST_ROWS]:
        cells = (str(len(members)), _where(members), kind.product, kind.layout, kind.serves)
        table.add_row(*cells, *((kind.destroyed,) if changes else ()))
    return table, sum(len(members) for _, members in rows[MOST_ROWS:])


def _kind(gpu: PackedGpu) -> _Kind:
    return _Kind(
        product=product_word(gpu.candidate.gpu.product),
        layout=compact_layout(gpu.layout),
        serves=demand_words(served_counts(gpu.serves).items()),
        destroyed=compact_layout([gone.item for gone in gpu.disturbed]),
        mode_change=not gpu.candidate.gpu.mig_enabled,
    )


def compact_layout(items: Sequence[LayoutItem]) -> str:
    """``1g.10gb@0-3  3g.40gb@4``."""
    starts = grouped((str(item.profile), item.start or 0) for item in items)
    return "  ".join(_at(name, at) for name, at in starts.items())


def _at(name: str, starts: Sequence[int]) -> str:
    if len(set(starts)) < len(starts):
        return "  ".join(f"{name}@{start}" for start in starts)
    return f"{name}@{numbers(starts).replace(' ', '')}"


def _where(members: Sequence[PackedGpu]) -> str:
    return places([(member.candidate.machine, member.candidate.gpu.index) for member in members])


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
    for profile in mig.profiles:
        table.add_row(
            profile.profile,
            _or_dash(profile.id),
            str(profile.max_count),
            format_bytes(profile.memory_bytes),
            _or_dash(profile.multiprocessors),
            str(profile.compute_slices),
            f"{numbers(profile.placements.starts)}: {profile.placements.size}",
            _engines(profile),
        )
    return table


def _engines(row: ProfileRow) -> str:
    if row.engines is None:
        return "-"
    return "/".join(_or_dash(getattr(row.engines, kind)) for kind in ENGINE_KINDS)


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
        DeviceBlock(instance.label, width, (ShareCell(Mark.FREE, 1),))
        if instance
        else DeviceBlock("", width, ())
        for width, instance in slices.memory_row
    )
    sizes = counted(
        format_bytes(size) for size in sorted((device.memory_bytes for device in devices), reverse=True)
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
    cards = [
        card for model in models if model.mig for card in layout_cards(by_index[model.gpus[0]], model.mig)
    ]
    return [replace(card, index=number) for number, card in enumerate(cards, start=1)]

"""The tables of a node: what it offers, its GPUs, its holders; and the style of all tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.answers.render.fitting_table import FittingTable
from partage.answers.render.rows import gpu_cells, holder_cells, offer_lines
from partage.answers.wording import guarantee_words
from partage.model.gpu import Gpu, Inventory, LostGpu
from partage.model.ids import GpuUuid, ResourceName
from partage.model.share import Guarantee, NodeOffer
from partage.units import format_bytes

if TYPE_CHECKING:
    from partage.answers.documents.show import ShownShare
    from partage.answers.share_counts import ShareCount
    from partage.model.process import JobProcess

_GUARANTEE_STYLES = {
    Guarantee.HARD: "green",
    Guarantee.GUARDED: "cyan",
    Guarantee.ADVISORY: "yellow",
    Guarantee.NONE: "red",
}


def plain_table(title: str, *columns: str, right: Sequence[str] = ()) -> FittingTable:
    """An empty table. right: columns of numbers."""
    table = FittingTable(title)
    for column in columns:
        # People copy names out of the table, so they are not broken into lines.
        table.add_column(
            column,
            justify="right" if column in right else "left",
            overflow="fold",
            no_wrap=column == "Resource",
        )
    return table


def report_lines(
    head: Iterable[str], tables: Iterable[Table], remarks: Iterable[str]
) -> Iterator[RenderableType]:
    """A report of an experiment: what was run, its tables, and remarks."""
    yield from map(Text, head)
    for table in tables:
        yield Text()
        yield table
    yield Text()
    yield from (Text(f"! {remark}", style="yellow") for remark in remarks)


def jobs_table(processes: Iterable[JobProcess]) -> Table:
    """The processes on GPUs of a Slurm node: job, user and share of each."""
    table = plain_table(
        "Processes of Slurm jobs", "GPU", "Process", "Memory", "Job", "User", "Share", right=("Memory",)
    )
    for one in processes:
        memory = "" if one.used_bytes is None else format_bytes(one.used_bytes)
        job = ".".join(part for part in (one.job, one.step) if part) or "no job"
        user = one.user or ("" if one.uid is None else str(one.uid))
        process = f"{one.name or '?'} ({one.pid})"
        cells = (one.device or str(one.gpu), process, memory, job, user, one.share)
        table.add_row(*cells, style=None if one.job else "dim")
    return table


def resources_table(offer: NodeOffer, counts: Mapping[ResourceName, ShareCount] | None = None) -> Table:
    """What is offered: one row per name, and one per way and size where a name has several.

    counts: how many are held, free and not usable, beside the first row of a name; None: not known.
    """
    states = () if counts is None else ("Held", "Free", "Not usable")
    columns = ("Resource", "Count", *states, "GPUs", "How", "Each share", "Memory")
    table = plain_table("What is offered", *columns, right=("Count", *states))
    for line in offer_lines(offer):
        style = _GUARANTEE_STYLES[line.guarantee]
        table.add_row(
            line.name,
            str(line.count),
            *(() if counts is None else _state_cells(counts.get(ResourceName(line.name)))),
            line.gpus,
            line.sharing_text,
            line.share,
            Text(str(line.guarantee), style=style),
        )
    if not table.rows:
        table.add_row("nothing", "0")
    return table


def _state_cells(count: ShareCount | None) -> tuple[str, str, str]:
    if count is None:
        return "", "", ""
    return str(count.held), str(count.free), str(count.not_usable)


def guarantees_used(offer: NodeOffer) -> Text:
    """What the guarantees in the last column mean."""
    used = {offering.guarantee for offerings in offer.values() for offering in offerings}
    ordered = sorted(used, key=lambda guarantee: -guarantee.strength)
    return Text("\n".join(guarantee_words(guarantee) for guarantee in ordered), style="dim")


def gpus_table(inventory: Inventory, troubles: Mapping[GpuUuid, str]) -> Table:
    """All GPUs of a node, lost ones too. troubles: GPU UUID to what is wrong with it."""
    table = plain_table(
        "GPUs", "GPU", "Product", "Memory", "MIG", "Mode", "NUMA", "Health", right=("GPU", "Memory")
    )
    gpus: list[Gpu | LostGpu] = [*inventory.gpus, *inventory.lost]
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        trouble = troubles.get(gpu.uuid, "") if gpu.uuid else ""
        style = "red" if trouble or isinstance(gpu, LostGpu) else ""
        table.add_row(*gpu_cells(gpu, trouble), style=style)
    return table


def holders_table(held: Sequence[ShownShare], offer: NodeOffer) -> Table:
    """Who holds what."""
    table = plain_table("Who holds shares", "GPU", "Resource", "Share", "Held by", "Known", right=("GPU",))
    for cells in holder_cells(held, offer):
        table.add_row(*cells)
    return table

"""The tables of a node: what it offers, its GPUs, its holders, what they do; and the style of all tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from partage.answers.render.rows import gpu_cells, holder_cells, offer_lines
from partage.answers.render.terminal import cell_text
from partage.answers.wording import UNKNOWN, WHEN_SAMPLED, degrees, guarantee_words, part, watts
from partage.model.gpu import Gpu, Inventory, LostGpu
from partage.model.ids import GpuUuid, ResourceName
from partage.model.share import Guarantee, NodeOffer
from partage.units import format_bytes

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument
    from partage.answers.documents.show import ShownShare
    from partage.answers.documents.use import HourRow, UseRow
    from partage.answers.share_counts import ShareCount
    from partage.model.gpu_use import JobProcess


_GAPS = (3, 2)
"""Spaces between two columns, and where that does not fit."""
_INDENT = 2
_NARROWEST = 12
"""The smallest room for the values of a block; narrower, each value is below its name."""


class FittingTable(Table):
    """A table of texts. ``add_row`` and the rest as for rich's table."""

    def __init__(self, heading: str) -> None:
        super().__init__(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        self.heading: str = heading

    def add_row(
        self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        """As rich's. A ``str`` is one line of plain text."""
        shown = (cell_text(cell) if isinstance(cell, str | Text) else cell for cell in cells)
        super().add_row(*shown, style=style, end_section=end_section)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table if every word has room in its column, else the blocks."""
        self.show_header = getattr(console, "headers", True)
        if self.heading and self.show_header:
            yield Text(self.heading, style="bold")
        columns = [self._texts(column) for column in range(len(self.columns))]
        needs = [self._needs(number, texts) for number, texts in enumerate(columns)]
        for gap in _GAPS:
            room = options.max_width - gap * (len(needs) - 1)
            if sum(least for least, _ in needs) <= room:
                self.padding = (0, 1, 0, gap - 2)  # and a column between the two
                widths = shared_out(needs, room)
                headers = [
                    Text(str(column.header)).cell_len if self.show_header else 0 for column in self.columns
                ]
                both = [(width, max(width, header)) for width, header in zip(widths, headers, strict=True)]
                for column, width in zip(self.columns, shared_out(both, room), strict=True):
                    column.width = width
                yield from super().__rich_console__(console, options)
                return
        yield from self._blocks(columns, options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """As wide as there is room."""
        return Measurement(1, options.max_width)

    def _texts(self, number: int) -> list[Text]:
        """The cells of a column, without its header."""
        cells = self.columns[number].cells
        return [cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells]

    def _needs(self, number: int, texts: Sequence[Text]) -> tuple[int, int]:
        """The widths of a column at which no word is split, and at which nothing is folded."""
        column = self.columns[number]
        most = max(
            (line.cell_len for text in texts for line in text.split("\n", allow_blank=True)), default=0
        )
        lines = [str(column.header), *(line for text in texts for line in text.plain.split("\n"))]
        longest = max(map(_longest_word, lines))
        least = max(most, longest) if column.no_wrap else longest
        return least, max(least, most)  # headers get what is left

    def _blocks(self, columns: Sequence[Sequence[Text]], width: int) -> Iterator[Text]:
        """One block per row: a line for each column that has something. An empty first cell repeats."""
        headers = [str(column.header) for column in self.columns]
        names = max(map(len, headers)) + _INDENT
        first = Text()
        for number, row in enumerate(zip(*columns, strict=True)):
            first = row[0] if row[0].plain.strip() else first
            if number or self.heading:
                yield Text()
            style = self.rows[number].style or ""
            for header, text in zip(headers, (first, *row[1:]), strict=True):
                if text.plain.strip():
                    yield from _line(header, text, names, width, str(style))


def _line(header: str, text: Text, names: int, width: int, style: str) -> Iterator[Text]:
    longest = max(Text(word).cell_len for word in text.plain.split())
    below = width - names < max(_NARROWEST, min(longest, width - _INDENT))
    indent = _INDENT if below else names
    lines = [folded for part in text.split("\n") for folded in _folded(part, width - indent)]
    for line in lines:
        line.stylize_before(style)
    head = Text(header.ljust(names), style="dim")
    if below:
        yield Text(header, style="dim")
    else:
        yield head + lines.pop(0)
    for line in lines:
        yield Text(" " * indent) + line


def _folded(text: Text, width: int) -> list[Text]:
    """Lines that break between words; a word that is longer than a line is split."""
    plain = text.plain
    if len(plain) <= width:
        return [text]
    parts = textwrap.wrap(plain, width, break_on_hyphens=False) or [""]
    return [Text(part, style=text.style) for part in parts]


def shared_out(needs: Sequence[tuple[int, int]], room: int) -> list[int]:
    """The width of each column: what its words need, and of the rest those first that lack least."""
    widths = [least for least, _ in needs]
    spare = room - sum(widths)
    lacking = sorted(range(len(needs)), key=lambda number: needs[number][1] - needs[number][0])
    for place, number in enumerate(lacking):
        more = min(needs[number][1] - needs[number][0], spare // (len(lacking) - place))
        widths[number] += more
        spare -= more
    return widths


def _longest_word(line: str) -> int:
    """Its width, with the spaces before the line's first word: they are not folded away."""
    indent = len(line) - len(line.lstrip())
    return indent + max((Text(word).cell_len for word in line.split()), default=0)


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
    for job_process in processes:
        memory = "" if job_process.used_bytes is None else format_bytes(job_process.used_bytes)
        job = ".".join(part for part in (job_process.job, job_process.step) if part) or "no job"
        user = job_process.user or ("" if job_process.uid is None else str(job_process.uid))
        process = f"{job_process.name or '?'} ({job_process.pid})"
        cells = (job_process.device or str(job_process.gpu), process, memory, job, user, job_process.share)
        table.add_row(*cells, style=None if job_process.job else "dim")
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


def use_tables(report: ReportDocument) -> Iterator[RenderableType]:
    """The use of each GPU and of each container where it is known; where it is not, since when."""
    use = report.use
    if use is None:
        return
    index_of = {gpu.uuid: str(gpu.index) for gpu in report.gpus}
    if not use.gpus:
        text = f"Use of the GPUs: not sampled since {use.sampled_at or use.began_at}. {WHEN_SAMPLED}"
        yield Text(text, style="dim")
        return
    table = plain_table(
        f"Use of the GPUs, sampled {use.sampled_at}",
        "GPU", "Utilisation", "Memory used", "Temperature", "Power", "Last hour",
        right=("GPU", "Utilisation"),
    )  # fmt: skip
    for row in use.gpus:
        used = UNKNOWN if row.memory_used_bytes is None else format_bytes(row.memory_used_bytes)
        table.add_row(
            index_of.get(row.gpu, "?"),
            part(row.utilisation),
            used,
            degrees(row.temperature_c),
            watts(row.power_w),
            _hour_text(use.hour.get(row.gpu)),
        )
    yield table
    if use.containers:
        yield Text()
        yield _containers(use, index_of)


def _containers(use: UseRow, index_of: Mapping[GpuUuid, str]) -> RenderableType:
    columns = ("GPU", "Container", "Memory used", "Peak", "Utilisation")
    table = plain_table("Use by containers", *columns, right=("GPU", "Utilisation"))
    for container in use.containers:
        sizes = (
            UNKNOWN if size is None else format_bytes(size)
            for size in (container.used_bytes, container.peak_bytes)
        )
        name = f"{container.namespace}/{container.pod}/{container.container}"
        table.add_row(index_of.get(container.gpu, "?"), name, *sizes, part(container.utilisation))
    return table


def _hour_text(hour: HourRow | None) -> str:
    """The range of the utilisation in words; empty where it is not known."""
    known: Sequence[float] = [] if hour is None else [busy for busy in hour.utilisation if busy is not None]
    return f"{part(min(known))} to {part(max(known))}" if known else ""

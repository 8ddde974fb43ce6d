"""A table that fits every width: it folds between words; where that is not enough, each row is a block.

No column is ever left out, and no word is split unless it is longer than a line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from partage.answers.render.terminal import cell_text

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
    lines = [one for part in text.split("\n") for one in _folded(part, width - indent)]
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

"""The picture in the terminal: one box per GPU, its shares as a bar. It can be read without colours."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

from rich import box
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from partage.answers.render.cards import DeviceBlock, GpuCard, Mark, gap_words
from partage.answers.wording import abridge, shorten
from partage.model.strategy import Strategy

CARD_WIDTH = 43
"""Two fit in 100 columns. 39 columns inside and a gap make 2, 4, 5, 8 or 10 equal shares. In a terminal that
is narrower, the cards are."""

_EDGES = 4
_HEIGHT = 6
_MARKS = {
    Mark.HELD: "█",
    Mark.FREE: "░",
    Mark.WITHDRAWN: "/",
    Mark.PLANNED: "▒",
    Mark.CUT: "-",
    Mark.UNCUT: "·",
    Mark.IDLE: "x",
}
_COLOURS = {
    Strategy.EXCLUSIVE: "green",
    Strategy.TIME_SLICING: "yellow",
    Strategy.MPS: "cyan",
    Strategy.MIG: "magenta",
}
_NARROWEST = 2
"""Smallest width of a share that is drawn by itself: a column and a gap."""


def picture(cards: Sequence[GpuCard], width: int) -> Table:
    """All cards, as many in a row as fit in ``width`` columns."""
    beside = max(1, (width + 1) // (CARD_WIDTH + 1))
    card_width = min(width, CARD_WIDTH)
    grid = Table.grid(*[""] * beside, padding=(0, 1, 0, 0), pad_edge=False)
    for first in range(0, len(cards), beside):
        row = cards[first : first + beside]
        height = _HEIGHT + any(_computes(card) for card in row)
        height += max(len(_standing(card, card_width - _EDGES)) for card in row)
        grid.add_row(*(_panel(card, card_width, height) for card in row))
    return grid


def legend(cards: Sequence[GpuCard] = ()) -> Text:
    """What the marks mean. cards: those that are drawn."""
    drawn = frozenset[Mark]().union(*(card.marks for card in cards))
    words = {
        Mark.HELD: "held",
        Mark.FREE: "free",
        Mark.WITHDRAWN: "withdrawn: no container gets it before the GPU has changed",
        Mark.PLANNED: "planned",
        Mark.UNCUT: gap_words(cards),
        Mark.CUT: "MIG device, not offered",
    }
    always = {Mark.HELD, Mark.FREE, Mark.PLANNED}
    marks = [f"{_MARKS[mark]} {text}" for mark, text in words.items() if text and mark in drawn | always]
    if any(_computes(card) for card in cards):
        marks.append(
            f"{_MARKS[Mark.IDLE]} idle; under MIG the upper bar is memory, the lower one compute slices"
        )
    return Text("  ".join(marks), style="dim")


def _panel(card: GpuCard, width: int, height: int) -> Panel:
    colour = "red" if card.trouble else _COLOURS[card.strategy] if card.strategy else "bright_black"
    title = f"GPU {card.index}  {card.product}"
    return Panel(
        _lines(card, width - _EDGES, colour),
        box=box.ROUNDED,
        title=Text.assemble((shorten(title, width - _EDGES - 2), "bold")),
        title_align="left",
        subtitle=Text(shorten(card.sharing_text, width - _EDGES - 2), style=f"bold {colour}")
        if card.sharing_text
        else None,
        subtitle_align="right",
        border_style=colour,
        width=width,
        height=height,
    )


def _lines(card: GpuCard, inner: int, colour: str) -> Text:
    # Every share ends with a gap; the gap of the last share is outside the card.
    spans = _spans([block.weight for block in card.blocks], inner + 1)
    labels, bar, names = Text(), Text(), Text()
    for block, width in zip(card.blocks, spans, strict=True):
        labels.append(_block_label(block, width).ljust(width))
        bar.append_text(_block_bar(block, width, colour))
        names.append(_block_names(block, width).ljust(width), style="dim")
    compute = _compute_bar(card, inner, colour)
    for line in (labels, bar, compute, names):
        line.truncate(inner)
    first = labels if labels.plain.strip() else Text(shorten(card.shares, inner))
    last = [Text(line, style="yellow") for line in _standing(card, inner)]
    if card.trouble:
        last.append(Text(shorten(card.trouble, inner), style="red"))
    else:
        last.append(Text(shorten(card.guarantee, inner), style="italic"))
    lines = Text("\n").join([first, bar, *([compute] if _computes(card) else []), names, *last])
    lines.no_wrap = True
    return lines


def _standing(card: GpuCard, inner: int) -> list[str]:
    """Why it is not settled, in two lines at most."""
    return textwrap.wrap(card.standing, inner, max_lines=2, placeholder=" …", break_on_hyphens=False)


def _computes(card: GpuCard) -> bool:
    """Its compute slices are drawn."""
    return bool(card.compute)


def _compute_bar(card: GpuCard, inner: int, colour: str) -> Text:
    """One mark for each compute slice, below the memory slices of its GPU instance."""
    bar = Text()
    for (_, mark), span in zip(
        card.compute, _spans([width for width, _ in card.compute], inner + 1), strict=True
    ):
        style = "bright_black" if mark in (None, Mark.IDLE, Mark.UNCUT) else colour
        bar.append((" " if mark is None else _MARKS[mark]) * (span - 1) + " ", style=style)
    return bar


def _block_label(block: DeviceBlock, width: int) -> str:
    """The profile if it fits, else its number of slices."""
    room = width - 1
    return block.label if len(block.label) <= room else shorten(block.label.partition(".")[0], room)


def _block_bar(block: DeviceBlock, width: int, colour: str) -> Text:
    if not block.cells:
        return Text(_MARKS[block.mark] * (width - 1) + " ", style="bright_black")
    spans = _spans([cell.weight for cell in block.cells], width)
    if width < _NARROWEST * len(block.cells) or (block.unit_bytes and min(spans) < _NARROWEST):
        return _crowded_bar(block, width, colour)
    bar = Text()
    for cell, span in zip(block.cells, spans, strict=True):
        bar.append(_MARKS[cell.mark] * max(1, span - 1) + " " * (span > 1), style=colour)
    return bar


def _crowded_bar(block: DeviceBlock, width: int, colour: str) -> Text:
    """More shares than columns: how many are held, instead of each share."""
    width -= 1
    count, held, gone = block.count, block.held, block.gone
    full = -(-held * width // count)
    rest = min(width - full, -(-gone * width // count))
    free = _MARKS[Mark.PLANNED if block.planned else Mark.FREE]
    bar = _MARKS[Mark.HELD] * full + _MARKS[Mark.WITHDRAWN] * rest + free * (width - full - rest)
    return Text(bar + " ", style=colour)


def _block_names(block: DeviceBlock, width: int) -> str:
    """The holder below each share if three letters fit, else how many shares are held."""
    held = [cell.holder for cell in block.cells if cell.holder is not None]
    spans = _spans([cell.weight for cell in block.cells], width) if block.cells else []
    if not held:
        return ""
    if block.unit_bytes or min(spans) < 4:
        return shorten(block.held_text, width - 1)
    named = zip(block.cells, spans, strict=True)
    return "".join(abridge(_short(cell.holder), span - 1).ljust(span) for cell, span in named)


def _short(holder: str | None) -> str:
    """The pod's name without its namespace."""
    return (holder or "").rpartition("/")[2]


def _spans(weights: Sequence[int], width: int) -> list[int]:
    """Columns for each weight; they add up to ``width``."""
    total = sum(weights)
    edges = [0]
    passed = 0
    for weight in weights:
        passed += weight
        edges.append(round(width * passed / total))
    return [right - left for left, right in itertools.pairwise(edges)]

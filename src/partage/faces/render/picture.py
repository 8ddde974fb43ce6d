"""The picture in the terminal: one box per GPU, its shares as a bar. It can be read without colours."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich import box
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from partage.faces.render.cards import DeviceBlock, GpuCard
from partage.faces.render.slices import ComputeSlice, GpuSlices, SliceUse
from partage.faces.wording import abridge, shorten
from partage.model.policy import Strategy

CARD_WIDTH = 43
"""Two fit in 100 columns. 39 columns inside and a gap make 2, 4, 5, 8 or 10 equal shares."""

_INNER = CARD_WIDTH - 4
_HEIGHT = 6
_HELD, _FREE, _GAP, _PLANNED, _IDLE, _UNOFFERED = "█", "░", "·", "▒", "x", "-"
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
    grid = Table.grid(*[""] * beside, padding=(0, 1, 0, 0), pad_edge=False)
    for first in range(0, len(cards), beside):
        row = cards[first : first + beside]
        height = _HEIGHT + any(_computes(card) for card in row)
        grid.add_row(*(_panel(card, height) for card in row))
    return grid


def legend(cards: Sequence[GpuCard] = ()) -> Text:
    """What the marks mean. cards: those that are drawn."""
    marks = f"{_HELD} held  {_FREE} free  {_PLANNED} planned  {_GAP} not cut"
    if any(block.label and not block.cells for card in cards for block in card.blocks):
        marks += f"  {_UNOFFERED} cut, not offered"
    if any(_computes(card) for card in cards):
        marks += f"  {_IDLE} idle; under MIG the upper bar is memory, the lower one compute slices"
    return Text(marks, style="dim")


def _panel(card: GpuCard, height: int) -> Panel:
    colour = "red" if card.trouble else _COLOURS[card.strategy] if card.strategy else "bright_black"
    title = f"GPU {card.index}  {card.product}"
    return Panel(
        _lines(card, colour),
        box=box.ROUNDED,
        title=Text.assemble((shorten(title, _INNER - 2), "bold")),
        title_align="left",
        subtitle=Text(card.sharing_text, style=f"bold {colour}") if card.sharing_text else None,
        subtitle_align="right",
        border_style=colour,
        width=CARD_WIDTH,
        height=height,
    )


def _lines(card: GpuCard, colour: str) -> Text:
    # Every share ends with a gap; the gap of the last share is outside the card.
    spans = _spans([block.weight for block in card.blocks], _INNER + 1)
    labels, bar, names = Text(), Text(), Text()
    for block, width in zip(card.blocks, spans, strict=True):
        labels.append(_block_label(block, width).ljust(width))
        bar.append_text(_block_bar(block, width, colour))
        names.append(_block_names(block, width).ljust(width), style="dim")
    compute = _compute_bar(card.slices, card.blocks, colour) if card.slices else Text()
    for line in (labels, bar, compute, names):
        line.truncate(_INNER)
    first = labels if labels.plain.strip() else Text(shorten(card.shares, _INNER))
    if card.trouble:
        last = Text(shorten(card.trouble, _INNER), style="red")
    else:
        last = Text(shorten(card.guarantee, _INNER), style="italic")
    lines = Text("\n").join([first, bar, *([compute] if _computes(card) else []), names, last])
    lines.no_wrap = True
    return lines


def _computes(card: GpuCard) -> bool:
    """Its compute slices are drawn."""
    return card.slices is not None and card.slices.compute > 0


def _compute_bar(slices: GpuSlices, blocks: Sequence[DeviceBlock], colour: str) -> Text:
    """One mark for each compute slice, below the memory slices of its GPU instance."""
    held = {
        instance.placement: any(cell.holder is not None for cell in block.cells)
        for (_, instance), block in zip(slices.memory_row, blocks, strict=True)
        if instance is not None
    }
    row = slices.compute_row
    spans = _spans([one.width for one in row], _INNER + 1) if row else []
    bar = Text()
    for one, span in zip(row, spans, strict=True):
        owner = one.instance
        mark = _compute_mark(one, held=owner is not None and held[owner.placement])
        style = colour if one.use is SliceUse.RUNS else "bright_black"
        bar.append(mark * (span - 1) + " ", style=style)
    return bar


def _compute_mark(one: ComputeSlice, *, held: bool) -> str:
    match one.use:
        case SliceUse.RUNS if one.instance is not None and one.instance.planned:
            return _PLANNED
        case SliceUse.RUNS if one.instance is not None and not one.instance.offerings:
            return _UNOFFERED
        case SliceUse.RUNS:
            return _HELD if held else _FREE
        case SliceUse.IDLE:
            return _IDLE
        case SliceUse.UNCUT:
            return _GAP
        case _:
            return " "


def _block_label(block: DeviceBlock, width: int) -> str:
    """The profile if it fits, else its number of slices."""
    room = width - 1
    return block.label if len(block.label) <= room else shorten(block.label.partition(".")[0], room)


def _block_bar(block: DeviceBlock, width: int, colour: str) -> Text:
    if not block.cells:
        return Text((_UNOFFERED if block.label else _GAP) * (width - 1) + " ", style="bright_black")
    if width < _NARROWEST * len(block.cells):
        return _crowded_bar(block, width, colour)
    free = _PLANNED if block.planned else _FREE
    bar = Text()
    for cell, span in zip(block.cells, _spans([cell.weight for cell in block.cells], width), strict=True):
        mark = free if cell.holder is None else _HELD
        bar.append(mark * max(1, span - 1) + " " * (span > 1), style=colour)
    return bar


def _crowded_bar(block: DeviceBlock, width: int, colour: str) -> Text:
    """More shares than columns: how many are held, instead of each share."""
    held = sum(cell.holder is not None for cell in block.cells)
    full = -(-held * (width - 1) // len(block.cells))
    free = _PLANNED if block.planned else _FREE
    return Text(_HELD * full + free * (width - 1 - full) + " ", style=colour)


def _block_names(block: DeviceBlock, width: int) -> str:
    """The holder below each share if three letters fit, else how many shares are held."""
    held = [cell.holder for cell in block.cells if cell.holder is not None]
    spans = _spans([cell.weight for cell in block.cells], width) if block.cells else []
    if not held:
        return ""
    if min(spans) < 4:
        return shorten(f"{len(held)} of {len(block.cells)} held", width - 1)
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

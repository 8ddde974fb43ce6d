"""The picture in the terminal: one box per GPU, its shares as a bar. It can be read without colours."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

from rich import box
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from partage.answers.render.cards import DeviceBlock, GpuCard, ShareCell, gap_words
from partage.answers.render.slices import ComputeSlice, GpuSlices, SliceUse
from partage.answers.wording import abridge, shorten
from partage.model.strategy import Strategy

CARD_WIDTH = 43
"""Two fit in 100 columns. 39 columns inside and a gap make 2, 4, 5, 8 or 10 equal shares. In a terminal that
is narrower, the cards are."""

_EDGES = 4
_HEIGHT = 6
_HELD, _FREE, _GAP, _PLANNED, _IDLE, _UNOFFERED, _WITHDRAWN = "█", "░", "·", "▒", "x", "-", "/"
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
    blocks = [block for card in cards for block in card.blocks]
    marks = [f"{_HELD} held", f"{_FREE} free"]
    if any(cell.withdrawn for block in blocks for cell in block.cells):
        marks.append(f"{_WITHDRAWN} withdrawn: no container gets it before the GPU has changed")
    marks.append(f"{_PLANNED} planned")
    if gap := gap_words(cards):
        marks.append(f"{_GAP} {gap}")
    if any(block.label and not block.cells for block in blocks):
        marks.append(f"{_UNOFFERED} MIG device, not offered")
    if any(_computes(card) for card in cards):
        marks.append(f"{_IDLE} idle; under MIG the upper bar is memory, the lower one compute slices")
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
    compute = _compute_bar(card.slices, card.blocks, inner, colour) if card.slices else Text()
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
    return card.slices is not None and card.slices.compute > 0


def _compute_bar(slices: GpuSlices, blocks: Sequence[DeviceBlock], inner: int, colour: str) -> Text:
    """One mark for each compute slice, below the memory slices of its GPU instance."""
    drawn = {
        instance.placement: block
        for (_, instance), block in zip(slices.memory_row, blocks, strict=True)
        if instance is not None
    }
    row = slices.compute_row
    spans = _spans([one.width for one in row], inner + 1) if row else []
    bar = Text()
    for compute_slice, span in zip(row, spans, strict=True):
        owner = compute_slice.instance
        mark = _compute_mark(compute_slice, None if owner is None else drawn[owner.placement])
        style = colour if compute_slice.use is SliceUse.RUNS else "bright_black"
        bar.append(mark * (span - 1) + " ", style=style)
    return bar


def _compute_mark(part: ComputeSlice, block: DeviceBlock | None) -> str:
    match part.use:
        case SliceUse.RUNS if part.instance is not None and part.instance.planned:
            return _PLANNED
        case SliceUse.RUNS if part.instance is not None and not part.instance.offerings:
            return _UNOFFERED
        case SliceUse.RUNS if block is not None:
            return _HELD if block.held else _WITHDRAWN if block.withdrawn else _FREE
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
    spans = _spans([cell.weight for cell in block.cells], width)
    if width < _NARROWEST * len(block.cells) or (block.unit_bytes and min(spans) < _NARROWEST):
        return _crowded_bar(block, width, colour)
    bar = Text()
    for cell, span in zip(block.cells, spans, strict=True):
        mark = _share_mark(cell, planned=block.planned)
        bar.append(mark * max(1, span - 1) + " " * (span > 1), style=colour)
    return bar


def _crowded_bar(block: DeviceBlock, width: int, colour: str) -> Text:
    """More shares than columns: how many are held, instead of each share."""
    width -= 1
    count, held, gone = block.count, block.held, block.gone
    full = -(-held * width // count)
    rest = min(width - full, -(-gone * width // count))
    free = _PLANNED if block.planned else _FREE
    return Text(_HELD * full + _WITHDRAWN * rest + free * (width - full - rest) + " ", style=colour)


def _share_mark(cell: ShareCell, *, planned: bool) -> str:
    if cell.holder is not None:
        return _HELD
    if cell.withdrawn:
        return _WITHDRAWN
    return _PLANNED if planned else _FREE


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

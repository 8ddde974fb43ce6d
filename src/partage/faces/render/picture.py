"""Draw cards: one box per GPU, its shares as a bar. Readable without colours."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich import box
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from partage.faces.render.cards import Block, Card
from partage.faces.words import abridge, shorten
from partage.model.policy import Strategy

CARD_WIDTH = 43
"""Two beside each other in 100 columns. Inside, 39 columns and a gap make 2, 4, 5, 8 or 10 equal shares."""

_INNER = CARD_WIDTH - 4
_HELD, _FREE, _GAP, _PLANNED = "█", "░", "·", "▒"
_COLOURS = {
    Strategy.EXCLUSIVE: "green",
    Strategy.TIME_SLICING: "yellow",
    Strategy.MPS: "cyan",
    Strategy.MIG: "magenta",
}
_NARROWEST = 2
"""Columns of a share that is still drawn on its own: one, and a gap."""


def picture(cards: Sequence[Card], width: int) -> Table:
    """All cards, as many beside each other as ``width`` columns of a terminal have room for."""
    beside = max(1, (width + 1) // (CARD_WIDTH + 1))
    grid = Table.grid(*[""] * beside, padding=(0, 1, 0, 0), pad_edge=False)
    panels = [_panel(card) for card in cards]
    for first in range(0, len(panels), beside):
        grid.add_row(*panels[first : first + beside])
    return grid


def legend() -> Text:
    """What the bars mean."""
    return Text(f"{_HELD} held  {_FREE} free  {_PLANNED} planned  {_GAP} not cut", style="dim")


def _panel(card: Card) -> Panel:
    colour = "red" if card.trouble else _COLOURS[card.strategy] if card.strategy else "bright_black"
    title = f"GPU {card.index}  {card.product}"
    return Panel(
        _lines(card, colour),
        box=box.ROUNDED,
        title=Text.assemble((shorten(title, _INNER - 2), "bold")),
        title_align="left",
        subtitle=Text(card.way, style=f"bold {colour}") if card.way else None,
        subtitle_align="right",
        border_style=colour,
        width=CARD_WIDTH,
        height=6,
    )


def _lines(card: Card, colour: str) -> Text:
    # Every share ends with a gap; that of the last one falls outside the card.
    spans = _spans([block.weight for block in card.blocks], _INNER + 1)
    labels, bar, names = Text(), Text(), Text()
    for block, width in zip(card.blocks, spans, strict=True):
        labels.append(_block_label(block, width).ljust(width))
        bar.append_text(_block_bar(block, width, colour))
        names.append(_block_names(block, width).ljust(width), style="dim")
    for line in (labels, bar, names):
        line.truncate(_INNER)
    first = labels if labels.plain.strip() else Text(shorten(card.shares, _INNER))
    if card.trouble:
        last = Text(shorten(card.trouble, _INNER), style="red")
    else:
        last = Text(shorten(card.guarantee, _INNER), style="italic")
    lines = Text("\n").join([first, bar, names, last])
    lines.no_wrap = True
    return lines


def _block_label(block: Block, width: int) -> str:
    """The whole profile where there is room, else its number of slices."""
    room = width - 1
    return block.label if len(block.label) <= room else shorten(block.label.partition(".")[0], room)


def _block_bar(block: Block, width: int, colour: str) -> Text:
    if not block.cells:
        return Text(_GAP * (width - 1) + " ", style="bright_black")
    if width < _NARROWEST * len(block.cells):
        return _crowded_bar(block, width, colour)
    free = _PLANNED if block.planned else _FREE
    bar = Text()
    for cell, span in zip(block.cells, _spans([cell.weight for cell in block.cells], width), strict=True):
        mark = free if cell.holder is None else _HELD
        bar.append(mark * max(1, span - 1) + " " * (span > 1), style=colour)
    return bar


def _crowded_bar(block: Block, width: int, colour: str) -> Text:
    """More shares than columns: how full the device is, instead of each share."""
    held = sum(cell.holder is not None for cell in block.cells)
    full = -(-held * (width - 1) // len(block.cells))
    free = _PLANNED if block.planned else _FREE
    return Text(_HELD * full + free * (width - 1 - full) + " ", style=colour)


def _block_names(block: Block, width: int) -> str:
    """Who holds each share, below it, where there is room for three letters; else how many are held."""
    held = [cell.holder for cell in block.cells if cell.holder is not None]
    spans = _spans([cell.weight for cell in block.cells], width) if block.cells else []
    if not held:
        return ""
    if min(spans) < 4:
        return shorten(f"{len(held)} of {len(block.cells)} held", width - 1)
    named = zip(block.cells, spans, strict=True)
    return "".join(abridge(_short(cell.holder), span - 1).ljust(span) for cell, span in named)


def _short(holder: str | None) -> str:
    """The pod's name: the namespace is in the list of holders."""
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

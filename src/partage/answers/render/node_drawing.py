"""The picture of a node as a drawing: a card for each GPU, with boxes for its shares and slices. Lengths are
pixels.

The card of a GPU under MIG has two rows on one scale of memory slices: above, the memory of each GPU instance
with its profile and its holders; below, its compute slices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from partage.answers.render.cards import DeviceBlock, GpuCard, Mark, ShareCell, gap_words
from partage.answers.render.drawing import DIM, INK, LINE, PAPER, TROUBLE, UNCUT, Box, Drawing, Label, Shape
from partage.answers.render.slices import GpuSlices
from partage.answers.wording import abridge, shorten
from partage.model.strategy import Strategy

_MARGIN, _CARD, _GAP = 20, 560, 16
_LEFT, _BAR = 78, 468
"""Left end and width of the bars of a card."""
_HEAD, _RULER, _MEMORY, _COMPUTE, _FOOT, _LEGEND = 42, 14, 46, 24, 34, 62
_LINE = 18
"""Height of a second line at the foot of a card."""
_LETTER, _BOLD = 0.57, 0.66
"""Width of a letter as a part of its size, plain and bold. Rather too large: text stays in its box."""
_NARROWEST, _NARROWEST_AMOUNT, _FEWEST = 12, 3, 4
"""Smallest width of a share, and of an amount of memory, that is drawn by itself; smallest number of letters
of a holder's name.
"""
_UNSETTLED = "#8a5a00"
_COLOURS = {
    Strategy.EXCLUSIVE: ("#2e7d32", "#e0f0e1"),
    Strategy.TIME_SLICING: ("#a86200", "#fbecd3"),
    Strategy.MPS: ("#00738c", "#dbf0f5"),
    Strategy.MIG: ("#7b3fa0", "#efe3f6"),
}
"""Colours of held and of free shares, by strategy."""
_NO_COLOURS = (DIM, UNCUT)


def draw(cards: Sequence[GpuCard], caption: str, noun: str = "GPU") -> Drawing:
    """All cards, two in a row; below them a legend and the caption, a sentence."""
    beside = min(2, max(1, len(cards)))
    width = 2 * _MARGIN + beside * (_CARD + _GAP) - _GAP
    shapes: list[Shape] = []
    y = _MARGIN
    for first in range(0, len(cards), beside):
        row = cards[first : first + beside]
        height = max(map(_height, row))
        for column, card in enumerate(row):
            shapes.extend(_card(card, _MARGIN + column * (_CARD + _GAP), y, height, noun))
        y += height + _GAP
    shapes.extend(_legend(cards, y))
    shapes.append(Label(_MARGIN, y + 46, _fitting(caption, width - 2 * _MARGIN, 12), 12, DIM))
    height = y + _LEGEND
    return Drawing(width, height, (Box(0, 0, width, height, PAPER), *shapes))


def _height(card: GpuCard) -> int:
    under_mig = _RULER + 4 + _COMPUTE if card.slices else 0
    return _HEAD + under_mig + _MEMORY + _FOOT + (_LINE if card.standing else 0)


# --- one card ----------------------------------------------------------------------------------


def _card(card: GpuCard, x: int, y: int, height: int, noun: str) -> Iterator[Shape]:
    edge = TROUBLE if card.trouble else LINE
    full, _ = _colours(card)
    yield Box(x, y, _CARD, height, PAPER, edge)
    sharing_text = _fitting(card.sharing_text, 220, 13)
    title = _fitting(f"{noun} {card.index}  {card.product}", _CARD - 40 - _width(sharing_text, 13, _BOLD), 15)
    yield Label(x + 14, y + 26, title, 15, bold=True)
    yield Label(x + _CARD - 14, y + 26, sharing_text, 13, full, bold=True, at_end=True)
    bars = x + _LEFT
    top = y + _HEAD
    if card.slices:
        yield from _ruler(card.slices, bars, top + _RULER - 4)
        top += _RULER
    yield Label(bars - 10, top + _MEMORY / 2 + 4, "memory", 11, DIM, at_end=True)
    yield from _memory(card, bars, top)
    if card.slices:
        yield from _compute(card, bars, top + _MEMORY + 4)
    if card.standing:
        line = y + height - 12 - _LINE
        yield Label(x + 14, line, _fitting(card.standing, _CARD - 28, 12), 12, _UNSETTLED, bold=True)
    text, colour = (card.trouble, TROUBLE) if card.trouble else ("; ".join(card.facts), DIM)
    yield Label(x + 14, y + height - 12, _fitting(text, _CARD - 28, 12), 12, colour)


def _ruler(slices: GpuSlices, x: int, y: int) -> Iterator[Shape]:
    """The numbers of the memory slices."""
    for number, (left, _) in enumerate(_spans([1] * slices.memory)):
        yield Label(x + left + 2, y, str(number), 9, DIM)


def _memory(card: GpuCard, x: int, y: int) -> Iterator[Shape]:
    for block, (left, width) in zip(
        card.blocks, _spans([device_block.weight for device_block in card.blocks]), strict=True
    ):
        yield from _block(block, x + left, y, width, _colours(card))


def _marked(mark: Mark, place: Box, colours: tuple[str, str]) -> Box:
    """The place, drawn as the mark says. colours: of held and of free shares."""
    full, tint = colours
    match mark:
        case Mark.HELD:
            return replace(place, fill=full, stroke=full)
        case Mark.FREE:
            return replace(place, fill=tint, stroke=full)
        case Mark.WITHDRAWN:
            return replace(place, fill=PAPER, stroke=full, hatched=True)
        case Mark.PLANNED:
            return replace(place, fill=PAPER, stroke=full, dashed=True)
        case Mark.CUT:
            return replace(place, fill=PAPER, stroke=LINE)
        case Mark.UNCUT:
            return replace(place, fill=UNCUT, stroke=LINE, dashed=True)
        case Mark.IDLE:
            return replace(place, fill=UNCUT, stroke=LINE, crossed=True)


def _block(block: DeviceBlock, x: float, y: int, width: float, colours: tuple[str, str]) -> Iterator[Shape]:
    """One device: its shares from left to right, with the profile and the holders."""
    full, tint = colours
    place = Box(x + 1, y, width - 2, _MEMORY, tint, full)
    if not block.cells:
        yield _marked(block.mark, place, colours)
        yield from _profile(block.label, x, y, width, DIM)
        return
    spans = _spans([cell.weight for cell in block.cells], place.width)
    if min(span for _, span in spans) < (_NARROWEST_AMOUNT if block.unit_bytes else _NARROWEST):
        yield from _crowded(block, place)
        yield from _profile(block.label, x, y, width, full)
        return
    for cell, (left, span) in zip(block.cells, spans, strict=True):
        at = replace(place, x=place.x + left + bool(left), width=span - bool(left))
        yield _marked(cell.mark, at, colours)
        yield from _holder(cell, x + left, y + (36 if block.label else 28), span)
    first = block.cells[0]
    if first.mark is Mark.WITHDRAWN and block.label:
        behind = min(spans[0][1] - 6, _width(block.label, 12, _BOLD) + 6)
        yield Box(x + 4, y + 6, behind, 16, PAPER)
    yield from _profile(block.label, x, y, spans[0][1], PAPER if first.mark is Mark.HELD else full)


def _holder(cell: ShareCell, x: float, y: float, width: float) -> Iterator[Shape]:
    letters = int((width - 10) / (11 * _LETTER))
    if cell.holder is not None and letters >= _FEWEST:
        yield Label(x + 6, y, abridge(cell.holder.rpartition("/")[2], letters), 11, PAPER)


def _crowded(block: DeviceBlock, place: Box) -> Iterator[Shape]:
    """More shares than can be drawn: a stripe that shows how many are held."""
    held, count, gone = block.held, block.count, block.gone
    stripe = Box(place.x, place.y + _MEMORY - 10, place.width * held / count, 10, place.stroke)
    yield place
    if held:
        yield stripe
    if gone:
        left, width = stripe.x + stripe.width, place.width * gone / count
        yield replace(stripe, x=left, width=width, fill=PAPER, stroke=place.stroke, hatched=True)
    text = block.held_text + (f", {gone} withdrawn" if gone else "")
    text = text if _width(text, 11) <= place.width - 8 else f"{held}/{count}"
    yield Label(place.x + 5, place.y + (32 if block.label else 24), text, 11, INK)


def _profile(label: str, x: float, y: float, width: float, colour: str) -> Iterator[Shape]:
    """The profile in a size that fits, else its number of slices."""
    size = next((size for size in (12, 11, 10) if _width(label, size, _BOLD) <= width - 8), 0)
    text = label if size else _fitting(label.partition(".")[0], width - 8, 11)
    if text:
        yield Label(x + 6, y + 18, text, size or 11, colour, bold=True)


def _compute(card: GpuCard, x: int, y: int) -> Iterator[Shape]:
    if not card.compute:
        return
    yield Label(x - 10, y + _COMPUTE / 2 + 4, "compute", 11, DIM, at_end=True)
    spans = _spans([width for width, _ in card.compute])
    for (_, mark), (left, width) in zip(card.compute, spans, strict=True):
        if mark is not None:
            yield _marked(mark, Box(x + left + 2, y, width - 4, _COMPUTE, PAPER), _colours(card))


# --- the legend --------------------------------------------------------------------------------


def _legend(cards: Sequence[GpuCard], y: int) -> Iterator[Shape]:
    """The marks that are used, each with its meaning."""
    drawn = frozenset[Mark]().union(*(card.marks for card in cards))
    words = {
        Mark.HELD: "held",
        Mark.FREE: "free",
        Mark.WITHDRAWN: "withdrawn",
        Mark.PLANNED: "planned",
        Mark.UNCUT: gap_words(cards),
        Mark.CUT: "MIG device, not offered",
        Mark.IDLE: "compute slice without a use",
    }
    always = {Mark.HELD, Mark.FREE}
    x: float = _MARGIN
    for mark, word in words.items():
        if not word or mark not in drawn | always:
            continue
        yield _marked(mark, Box(x, y + 8, 22, 14, PAPER), (DIM, "#dfe3e8"))
        yield Label(x + 28, y + 20, word, 12, DIM)
        x += 28 + _width(word, 12) + 18


# --- measures ----------------------------------------------------------------------------------


def _colours(card: GpuCard) -> tuple[str, str]:
    return _COLOURS[card.strategy] if card.strategy else _NO_COLOURS


def _spans(weights: Sequence[int], width: float = _BAR) -> list[tuple[float, float]]:
    """Left edge and width of each weight's part."""
    total = sum(weights)
    edges = [width * passed / total for passed in (0, *itertools.accumulate(weights))]
    return [(left, right - left) for left, right in itertools.pairwise(edges)]


def _width(text: str, size: int, letter: float = _LETTER) -> float:
    return len(text) * size * letter


def _fitting(text: str, width: float, size: int) -> str:
    return shorten(text, max(0, int(width / (size * _LETTER))))

"""One GPU on the page: the drawing of its memory and compute slices, as ``show`` draws them, in SVG.

Positions are percentages, so that the drawing is as wide as its place and its letters keep their size.
Colours are classes: the style sheet has them, for light and dark.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from partage.answers.render.cards import DeviceBlock, GpuCard, Mark, ShareCell
from partage.serve_http.pages.legend import MARKS
from partage.serve_http.pages.markup import element

_MEMORY, _COMPUTE = 40, 14
"""Heights in pixels."""
_MOST_CELLS = 48
"""More shares than that in one device are drawn as one stripe: how many are held."""
_NARROWEST_NAMED = 12.0
"""Percent of a device that an amount of memory has to have, so that its holder is written in it."""


def drawing(card: GpuCard) -> Element:
    """The bars of one GPU."""
    bars = [_bar(_MEMORY, _memory(card.blocks), label=f"memory of GPU {card.index}: {_in_words(card)}")]
    if card.compute:
        row = _bar(_COMPUTE, _compute(card), label=f"compute slices of GPU {card.index}")
        bars.append(row)
    strategy = card.strategy or "none"
    return element("div", *bars, class_=f"bars {strategy}")


def _in_words(card: GpuCard) -> str:
    """What the drawing shows, for people who cannot see it."""
    if not any(block.cells for block in card.blocks):
        return card.sharing_text or "nothing is offered"
    parts = []
    for block in card.blocks:
        if block.cells:
            text = block.held_text
            parts.append(f"{block.label}, {text}" if block.label else text)
        else:
            parts.append(f"{block.label}, not offered" if block.label else "no MIG device")
    return "; ".join(parts)


def _bar(height: int, shapes: Iterator[Element], label: str) -> Element:
    return element(
        "svg", *shapes, class_="bar", width="100%", height=str(height), role="img", aria_label=label
    )


def _memory(blocks: Sequence[DeviceBlock]) -> Iterator[Element]:
    for block, (left, width) in zip(
        blocks, _spans([device_block.weight for device_block in blocks]), strict=True
    ):
        yield _cell(left, width, _MEMORY, *_block(block))


def _block(block: DeviceBlock) -> Iterator[Element]:
    if not block.cells:
        yield _box(block.mark)
    elif len(block.cells) > _MOST_CELLS:
        yield from _stripe(block)
    else:
        spans = _spans([cell.weight for cell in block.cells])
        for cell, (left, width) in zip(block.cells, spans, strict=True):
            named = not block.unit_bytes or width >= _NARROWEST_NAMED
            yield _cell(left, width, _MEMORY, *_share(cell, block, named=named))
    if block.label:
        first = block.cells[0] if block.cells else None
        on = " on-held" if first is not None and first.mark is Mark.HELD else ""
        yield element("text", block.label, x="6", y="15", class_=f"profile{on}")


def _share(cell: ShareCell, block: DeviceBlock, *, named: bool) -> Iterator[Element]:
    """A share, or the amount that a pod holds. named: there is room for a name."""
    amount = f": {block.amount(cell.count)}" if block.unit_bytes else ""
    if cell.holder is not None:
        yield _box("held", element("title", f"held by {cell.holder}{amount}"))
        name = cell.holder.rpartition("/")[2]
        if named:
            yield element("text", name, x="6", y="33" if block.label else "25", class_="on-held")
    else:
        word = MARKS[cell.mark]
        yield _box(cell.mark, element("title", f"{word}{amount}"))
        if named and amount:
            text = f"{block.amount(cell.count)} {word}"
            yield element("text", text, x="6", y="33" if block.label else "25", class_="ink")


def _stripe(block: DeviceBlock) -> Iterator[Element]:
    """More shares than can be drawn one by one: how many are held, how many cannot be used."""
    count, gone = block.count, block.gone
    held = 100 * block.held / count
    yield _box("free")
    for kind, left, width in (("held", 0.0, held), ("withdrawn", held, 100 * gone / count)):
        if width:
            yield element(
                "rect", x=f"{left:.3f}%", y=str(_MEMORY - 10), width=f"{width:.3f}%", height="10", class_=kind
            )
    text = block.held_text + (f", {gone} not usable" if gone else "")
    yield element("text", text, x="6", y="27" if block.label else "20", class_="ink")


def _compute(card: GpuCard) -> Iterator[Element]:
    spans = _spans([width for width, _ in card.compute])
    for (_, mark), (left, width) in zip(card.compute, spans, strict=True):
        if mark is not None:
            title = element("title", MARKS[Mark.IDLE]) if mark is Mark.IDLE else None
            yield _cell(left, width, _COMPUTE, _box(mark, title))


def _cell(left: float, width: float, height: int, *children: Element) -> Element:
    """A part of a bar. Nothing in it is drawn beyond its edges."""
    return element(
        "svg", *children, x=f"{left:.3f}%", width=f"{width:.3f}%", height=str(height), overflow="hidden"
    )


def _box(kind: str, *children: Element | None) -> Element:
    return element("rect", *children, width="100%", height="100%", class_=f"box {kind}")


def _spans(weights: Sequence[int]) -> list[tuple[float, float]]:
    """Left edge and width of each weight's part, in percent."""
    total = sum(weights) or 1
    edges = [100 * passed / total for passed in (0, *itertools.accumulate(weights))]
    return [(left, right - left) for left, right in itertools.pairwise(edges)]

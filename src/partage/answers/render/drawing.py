"""The picture of a node as boxes and labels with coordinates, and such drawings as files: SVG, and PNG if
Pillow is installed; plots as files, if matplotlib is. Lengths are pixels.

The card of a GPU under MIG has two rows on one scale of memory slices: above, the memory of each GPU instance
with its profile and its holders; below, its compute slices.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.answers.render.cards import DeviceBlock, GpuCard, GpuSlices, Mark, ShareCell, gap_words
from partage.answers.wording import abridge, shorten
from partage.errors import InputError, Problem, missing_library
from partage.model.strategy import Strategy
from partage.text import printable
from partage.values import Frozen

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.ImageDraw import ImageDraw

_PLOT_DPI = 160

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

INK, DIM, PAPER, LINE, UNCUT = "#1f2933", "#66727f", "#ffffff", "#cbd2d9", "#eef1f4"
TROUBLE, UNSETTLED = "#c62828", "#8a5a00"
_COLOURS = {
    Strategy.EXCLUSIVE: ("#2e7d32", "#e0f0e1"),
    Strategy.TIME_SLICING: ("#a86200", "#fbecd3"),
    Strategy.MPS: ("#00738c", "#dbf0f5"),
    Strategy.MIG: ("#7b3fa0", "#efe3f6"),
}
"""Colours of held and of free shares, by strategy."""
_NO_COLOURS = (DIM, UNCUT)


class Box(Frozen):
    """A rectangle. stroke: colour of its edge, empty for none. dashed, crossed, hatched: how it is drawn."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    stroke: str = ""
    dashed: bool = False
    crossed: bool = False
    hatched: bool = False


class Label(Frozen):
    """A line of text. x: its left end, or its right end if ``at_end``. y: its base line."""

    x: float
    y: float
    text: str
    size: int = 12
    colour: str = INK
    bold: bool = False
    at_end: bool = False


Shape = Box | Label


class Drawing(Frozen):
    """Shapes; later ones are drawn over earlier ones."""

    width: int
    height: int
    shapes: tuple[Shape, ...]


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
        yield Label(x + 14, line, _fitting(card.standing, _CARD - 28, 12), 12, UNSETTLED, bold=True)
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


_FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
_DASH = 4
_HATCH = 7
"""Distance of the lines of a hatched box."""
_SCALE = 2
"""Pixels of a PNG for each pixel of the drawing."""
FORMATS = (".svg", ".png")


def check_picture_name(path: str) -> str:
    """The file name's ending, one of ``FORMATS``. Raises InputError for another one."""
    ending = next((known for known in FORMATS if path.lower().endswith(known)), None)
    if ending is None:
        problem = Problem(path, "", "error", "a picture is written as .svg or .png", "node.svg, node.png")
        raise InputError([problem])
    return ending


def check_plot(path: str) -> None:
    """Before the work whose result is drawn. Raises InputError for a wrong file name and for a folder that
    is not there, Unsatisfiable if matplotlib is not installed.
    """
    check_picture_name(path)
    if not Path(path).parent.is_dir():
        raise InputError([Problem(path, "", "error", "cannot be written: there is no such folder")])
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_library("a plot", "matplotlib", "matplotlib")


def plotted(draw: Callable[[], Figure], ending: str) -> bytes:
    """A file of what is drawn with matplotlib; ``check_plot`` has checked that it is there. ending: ``.png``,
    ``.svg``.
    """
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"text.parse_math": False}):  # a ``$`` in a name begins no formula
        draw().savefig(file, format=ending.removeprefix("."), dpi=_PLOT_DPI)
    return file.getvalue()


def picture_file(drawing: Drawing, path: str) -> bytes:
    """The content of a picture file of that name. Raises Unsatisfiable for a PNG without Pillow."""
    return png(drawing) if check_picture_name(path) == ".png" else svg(drawing).encode()


# --- SVG ---------------------------------------------------------------------------------------


def svg(drawing: Drawing) -> str:
    """The drawing as SVG."""
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    shapes = "\n".join(
        _svg_box(shape) if isinstance(shape, Box) else _svg_label(shape) for shape in drawing.shapes
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONTS}">'
    return f"{head}\n{shapes}\n</svg>\n"


def _svg_box(box: Box) -> str:
    # Edges lie in the middle of pixels, so that a line is sharp.
    x, y, width, height = (f"{value:g}" for value in _inset(box))
    stroke = f' stroke="{box.stroke}"' if box.stroke else ""
    dash = f' stroke-dasharray="{_DASH}"' if box.dashed else ""
    rect = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{box.fill}"{stroke}{dash}/>'
    path = "".join(f"M{ax:g} {ay:g}L{bx:g} {by:g}" for ax, ay, bx, by in _strokes(box))
    return f'{rect}<path d="{path}" stroke="{box.stroke}"/>' if path else rect


def _svg_label(label: Label) -> str:
    weight = ' font-weight="bold"' if label.bold else ""
    anchor = ' text-anchor="end"' if label.at_end else ""
    place = f'x="{label.x:g}" y="{label.y:g}" font-size="{label.size}" fill="{label.colour}"'
    return f'<text {place}{weight}{anchor} xml:space="preserve">{escape(printable(label.text))}</text>'


def _inset(box: Box) -> tuple[float, float, float, float]:
    half = 0.5 if box.stroke else 0
    left, top = round(box.x), round(box.y)
    right, bottom = round(box.x + box.width), round(box.y + box.height)
    return left + half, top + half, right - left - 2 * half, bottom - top - 2 * half


def _strokes(box: Box) -> list[tuple[float, float, float, float]]:
    """The lines inside a box that is crossed or hatched, from point to point."""
    x, y, width, height = _inset(box)
    if box.crossed:
        return [(x, y, x + width, y + height), (x, y + height, x + width, y)]
    if not box.hatched:
        return []
    steps = range(_HATCH, int(width + height), _HATCH)
    return [
        (x + max(0, at - height), y + min(at, height), x + min(at, width), y + max(0, at - width))
        for at in steps
    ]


# --- PNG ---------------------------------------------------------------------------------------


def png(drawing: Drawing) -> bytes:
    """The drawing as PNG. Raises Unsatisfiable where Pillow is not installed."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as missing:
        raise missing_library("a PNG", "Pillow", "pillow", "an .svg needs nothing") from missing
    image = Image.new("RGB", (drawing.width * _SCALE, drawing.height * _SCALE))
    canvas = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            _png_box(canvas, shape)
        else:
            _png_label(canvas, shape)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _png_box(canvas: ImageDraw, box: Box) -> None:
    x, y, width, height = _inset(box)
    corners = (x * _SCALE, y * _SCALE, (x + width) * _SCALE, (y + height) * _SCALE)
    canvas.rectangle(corners, fill=box.fill)
    for stroke in _strokes(box):
        canvas.line([value * _SCALE for value in stroke], fill=box.stroke, width=_SCALE)
    if box.stroke and not box.dashed:
        canvas.rectangle(corners, outline=box.stroke, width=_SCALE)
    elif box.stroke:
        _dashed(canvas, corners, box.stroke)


def _dashed(canvas: ImageDraw, corners: tuple[float, float, float, float], colour: str) -> None:
    left, top, right, bottom = corners
    step = _DASH * _SCALE
    for x in range(int(left), int(right), 2 * step):
        end = min(x + step, right)
        canvas.line((x, top, end, top), fill=colour, width=_SCALE)
        canvas.line((x, bottom, end, bottom), fill=colour, width=_SCALE)
    for y in range(int(top), int(bottom), 2 * step):
        end = min(y + step, bottom)
        canvas.line((left, y, left, end), fill=colour, width=_SCALE)
        canvas.line((right, y, right, end), fill=colour, width=_SCALE)


def _png_label(canvas: ImageDraw, label: Label) -> None:
    from PIL import ImageFont

    font = ImageFont.load_default(label.size * _SCALE)
    canvas.text(
        (label.x * _SCALE, label.y * _SCALE),
        printable(label.text),
        fill=label.colour,
        font=font,
        anchor="rs" if label.at_end else "ls",
        stroke_width=0.4 * _SCALE if label.bold else 0,
    )

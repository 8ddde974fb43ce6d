"""Drawings of boxes and labels with coordinates, and the files of them: SVG, and PNG if Pillow is installed;
plots as files, if matplotlib is. Lengths are pixels.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from partage.errors import missing_library, wrong_input
from partage.text import printable
from partage.values import Frozen

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.ImageDraw import ImageDraw

INK, DIM, PAPER, LINE, UNCUT, TROUBLE = "#1f2933", "#66727f", "#ffffff", "#cbd2d9", "#eef1f4", "#c62828"

_FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
_DASH = 4
_HATCH = 7
"""Distance of the lines of a hatched box."""
_SCALE = 2
"""Pixels of a PNG for each pixel of the drawing."""
_PLOT_DPI = 160


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


# --- file names, and plots -----------------------------------------------------------------------


def check_picture_name(path: str) -> str:
    """The file name's ending, ``.svg`` or ``.png``. Raises InputError for another one."""
    return check_ending(path, (".svg", ".png"), "a picture is written as .svg or .png", "node.svg, node.png")


def check_ending(path: str, endings: Sequence[str], message: str, hint: str) -> str:
    """The file name's ending, as it stands in ``endings``. Raises InputError with that text for another."""
    for ending in endings:
        if path.lower().endswith(ending):
            return ending
    raise wrong_input(path, message, hint)


def check_plot(path: str) -> None:
    """Before the work whose result is drawn. Raises InputError for a wrong file name and for a folder that
    is not there, Unsatisfiable if matplotlib is not installed.
    """
    check_picture_name(path)
    if not Path(path).parent.is_dir():
        raise wrong_input(path, "cannot be written: there is no such folder")
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

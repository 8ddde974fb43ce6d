"""The terminal: how wide it is, and which signs it has. ``NO_COLOR`` is honoured by rich.

Nothing that is printed is markup, and no text gets a control character to the terminal: names of pods and
processes come from tenants.

Where the locale has no block letters, each is replaced by one ASCII letter, so that nothing moves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich import console as rich_console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from partage.text import printable, printable_lines

ASCII_SIGNS = str.maketrans(
    {
        "█": "#",
        "░": ".",
        "▒": ":",
        "·": "_",
        "…": "~",
        "✓": "+",
        "✗": "!",
        "→": ">",
        "─": "-",
        "━": "-",
        "│": "|",
        **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼╷╵╶╴", "+"),
    }
)
"""Signs of ours in ASCII. Those of the picture stay apart: held #, free ., planned :, no MIG device _."""

_DRAWN = 110
"""Columns of a picture where standard output is not a terminal."""
_UNFOLDED = 100_000
"""Columns of text where nothing is folded: in a file or a pipe each row is one line, which programs read."""


class Console(rich_console.Console):
    """A ``str`` is one line of plain text; what has styles or several lines is a ``Text``.

    headers: whether tables have a heading and the names of their columns.
    A reader of stdout that ends early (``| head``) is noticed in ``main``; rich would exit with 1.
    """

    def __init__(
        self,
        *,
        ascii_only: bool = False,
        width: int | None = None,
        stderr: bool = False,
        headers: bool = True,
    ) -> None:
        # Without emoji their names are not imported: 4 ms.
        super().__init__(
            highlight=False, emoji=False, markup=False, width=width, soft_wrap=False, stderr=stderr
        )
        self._ascii_only = ascii_only
        self.headers = headers

    @property
    def drawing_width(self) -> int:
        """Columns for what is drawn, also where text is not folded."""
        return _DRAWN if self.width == _UNFOLDED else self.width

    @property
    def encoding(self) -> str:
        """Rich draws edges in ASCII where this is no UTF."""
        return "ascii" if self._ascii_only else super().encoding

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does, printable, and with the signs that the terminal has."""
        segments = map(_printable, super().render(renderable, options))
        return map(_in_ascii, segments) if self._ascii_only else segments

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - rich's
        """As rich does, in one line."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Let ``main`` end."""
        raise BrokenPipeError


def cell_text(cell: str | Text) -> Text:
    """What is shown of a cell of a table, as wide as it will be."""
    if isinstance(cell, str):
        return Text(printable(cell))
    shown = printable_lines(cell.plain)
    return cell if shown == cell.plain else Text(shown, style=cell.style)


def _printable(segment: Segment) -> Segment:
    """A net below ``cell_text`` for all other texts."""
    if segment.control or segment.text.isprintable() or segment.text == "\n":
        return segment
    return Segment(printable_lines(segment.text), segment.style)


def _in_ascii(segment: Segment) -> Segment:
    if segment.control or segment.text.isascii():
        return segment
    return Segment(segment.text.translate(ASCII_SIGNS), segment.style)


def open_console(*, wide: bool = False, headers: bool = True) -> Console:
    """The console of standard output. Nothing is folded if that is asked for (wide), or if it is no terminal
    and COLUMNS is not set.
    """
    folded = not wide and (sys.stdout.isatty() or "COLUMNS" in os.environ)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return Console(
        ascii_only=needs_ascii(encoding, os.environ), width=None if folded else _UNFOLDED, headers=headers
    )


def needs_ascii(encoding: str, environment: Mapping[str, str]) -> bool:
    """Whether the terminal may lack other signs than ASCII.

    Python writes UTF-8 also where the locale is C, because files are mostly that; a terminal then is not. A
    container without any locale has a terminal of somebody else, mostly in UTF-8.
    """
    if not encoding.lower().replace("_", "-").startswith("utf"):
        return True
    if environment.get("PYTHONIOENCODING") or environment.get("PYTHONUTF8") == "1":
        return False
    said = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next((text for text in said if text), "") in ("C", "POSIX")

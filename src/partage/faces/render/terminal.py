"""The terminal: how wide it is, and which signs it has. ``NO_COLOR`` is honoured by rich.

Where the locale has no block letters, each is replaced by one ASCII letter, so that nothing moves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from rich import console as rich_console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

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
"""Signs of ours in ASCII. Those of the picture stay apart: held #, free ., planned :, not cut _."""

_WIDE = 110
"""Columns where standard output is not a terminal."""


class Console(rich_console.Console):
    """A reader of stdout that ends early (``| head``) is noticed in ``main``; rich would exit with 1."""

    def __init__(self, *, ascii_only: bool = False, width: int | None = None) -> None:
        # Without emoji their names are not imported: 4 ms.
        super().__init__(highlight=False, emoji=False, width=width, soft_wrap=False)
        self._ascii_only = ascii_only

    @property
    def encoding(self) -> str:
        """Rich draws edges in ASCII where this is no UTF."""
        return "ascii" if self._ascii_only else super().encoding

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does, with the signs that the terminal has."""
        segments = super().render(renderable, options)
        return map(_in_ascii, segments) if self._ascii_only else segments

    def on_broken_pipe(self) -> None:
        """Let ``main`` end."""
        raise BrokenPipeError


def _in_ascii(segment: Segment) -> Segment:
    if segment.control or segment.text.isascii():
        return segment
    return Segment(segment.text.translate(ASCII_SIGNS), segment.style)


def open_console() -> Console:
    """The console of standard output; 110 columns if that is no terminal and COLUMNS is not set."""
    wide_enough = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return Console(ascii_only=needs_ascii(encoding, os.environ), width=wide_enough)


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
    return next((one for one in said if one), "") in ("C", "POSIX")

"""``--watch``: an answer again and again, until Ctrl-C."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial

from partage.answers import common_output
from partage.errors import PartageError

_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"


def repeat(answer: Callable[[], None], interval_s: float, between: str = "") -> None:
    """Call ``answer``, which prints, every ``interval_s`` seconds, until Ctrl-C (KeyboardInterrupt).

    In a terminal each answer replaces the one before it. Elsewhere they follow each other. An error ends it
    the first time; later it is printed, and the next answer may be there again. between: two answers.
    """
    if sys.stdout.isatty():
        _redraw(answer, interval_s)
    first = True
    while True:
        _say(answer, first=first, before="" if first else between)
        first = False
        time.sleep(interval_s)


def _say(answer: Callable[[], None], *, first: bool, before: str) -> None:
    sys.stdout.write(before)
    try:
        answer()
    except PartageError as error:
        if first:
            raise
        common_output.print_problems(error.problems)
    sys.stdout.flush()


def _redraw(answer: Callable[[], None], interval_s: float) -> None:
    text = _drawn(answer)  # before the screen changes, so that an error stays readable
    with _screen():
        while True:
            _draw(text)
            time.sleep(interval_s)
            try:
                text = _drawn(answer)
            except PartageError as error:
                text = _drawn(partial(common_output.print_problems, error.problems))


class _Frame(io.StringIO):
    """A text that is drawn in a terminal: with its width, its colours and its signs."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # in typeshed it is an attribute
        return self._encoding

    def isatty(self) -> bool:
        return True


def _drawn(answer: Callable[[], None]) -> str:
    """What it prints; its warnings, too."""
    with redirect_stdout(_Frame(sys.stdout.encoding)) as frame, redirect_stderr(frame):
        answer()
    return frame.getvalue()


def _draw(text: str) -> None:
    """Over the old lines, without clearing the screen first: nothing flickers. What is too long is cut."""
    import shutil

    height = shutil.get_terminal_size().lines
    lines = text.splitlines()
    if len(lines) > height:
        lines = [*lines[: height - 1], f"... {len(lines) - height + 1} more lines"]
    said = f"{_CLEAR_LINE}\r\n".join(lines)
    sys.stdout.write(f"{_HOME}{said}{_CLEAR_LINE}{_CLEAR_BELOW}")
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[None]:
    """The terminal's second screen; what was on it before is there again afterwards."""
    sys.stdout.write(_OTHER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(_OWN_SCREEN)
        sys.stdout.flush()

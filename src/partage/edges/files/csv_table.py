"""CSV files with named columns that people or other programs wrote; what is wrong is reported by line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from partage.edges.host.read_file import read_named
from partage.errors import InputError, Problem, wrong_input
from partage.units import format_bytes

LARGEST_BYTES = 512 * 2**20
MOST_PROBLEMS = 10
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
"""Names are printed later, and such characters would change the terminal."""

Row = Mapping[str, str | None]
T = TypeVar("T")


def read_text(path: Path) -> str:
    """The text of a file. Raises InputError."""
    try:
        return _read(path, LARGEST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_text(path) from error


def read_table(
    path: Path,
    needed: Sequence[str],
    take: Callable[[Row], T],
    *,
    most: int | None = None,
    largest_bytes: int = LARGEST_BYTES,
) -> list[T]:
    """What ``take`` makes of each line; it raises ValueError with what is wrong with it, or WrongCell.

    most: lines that are read; None: all. Raises InputError: with the columns that are missing, or all
    problems of the lines, up to ten, or because there are more lines or bytes.
    """
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(_read(path, largest_bytes)), "utf-8-sig", newline=""))
    found: list[T] = []
    problems: list[Problem] = []
    try:
        columns = _columns(path, next(rows, []), needed)
        for cells in filter(None, rows):
            if len(found) == most:
                message = f"has more than {most:,} lines"
                raise wrong_input(path, message, "take a part of it")
            try:
                found.append(take(_row(columns, cells)))
            except ValueError as error:
                hint = error.hint if isinstance(error, WrongCell) else ""
                problems.append(Problem(str(path), f"line {rows.line_num}", "error", str(error), hint))
                if len(problems) == MOST_PROBLEMS:
                    break
    except csv.Error as error:
        problems.append(Problem(str(path), f"line {rows.line_num}", "error", f"is not CSV: {error}"))
    except UnicodeDecodeError as error:
        raise _not_text(path) from error
    if problems:
        raise InputError(problems)
    return found


def _read(path: Path, largest_bytes: int) -> bytes:
    try:
        content = read_named(path, largest_bytes + 1)
    except OSError as error:
        raise wrong_input(path, f"cannot be read: {error.strerror}") from error
    if len(content) > largest_bytes:
        message = f"is larger than {format_bytes(largest_bytes)}"
        raise wrong_input(path, message, "take a part of it")
    return content


def _not_text(path: Path) -> InputError:
    hint = "it has to be UTF-8"
    return wrong_input(path, "cannot be read: is not text", hint)


def _columns(path: Path, first: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Names of the columns. Raises InputError for the first line."""
    columns = [name.strip() for name in first]
    missing = [name for name in needed if name not in columns]
    if missing:
        message = f"lacks the columns {', '.join(missing)}"
        hint = f"the first line names them: {','.join(needed)}"
        if len(columns) == 1 and re.search("[;\t]", columns[0]):
            hint = f"commas are needed between the columns; {hint}"
        raise InputError([Problem(str(path), "line 1", "error", message, hint)])
    twice = sorted({name for name in columns if name and columns.count(name) > 1})
    if twice:
        raise InputError(
            [Problem(str(path), "line 1", "error", f"names the columns {', '.join(twice)} twice")]
        )
    return columns


def _row(columns: Sequence[str], cells: Sequence[str]) -> Row:
    """Raises WrongCell: a line that was cut, or has a comma too many, says something else than was meant."""
    if len(cells) != len(columns):
        raise WrongCell(
            f"has {len(cells)} columns, and the first line has {len(columns)}",
            "a comma within a name needs quotation marks around the name; a cell may be empty",
        )
    if any(map(_CONTROL.search, cells)):
        raise WrongCell("has characters that cannot be printed", "take control characters out of the names")
    return dict(zip(columns, cells, strict=True))


class WrongCell(ValueError):
    """A column of a line is wrong. hint: one sentence of advice."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def number(row: Row, name: str, hint: str = "") -> float | None:
    """The number in a column, from 0 on; None where it is empty or there is no such column. Raises
    WrongCell, with the hint.
    """
    text = (row.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text) if text.isascii() and "_" not in text else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e18:
        raise WrongCell(f"{name} is {text[:40]!r}, a number from 0 on is needed", hint)
    return value


def whole_number(row: Row, name: str, otherwise: int | None = None) -> int:
    """The whole number in a column. otherwise: where it is empty; None: that is wrong. Raises ValueError."""
    value = number(row, name)
    if value is None:
        if otherwise is None:
            raise ValueError(f"{name} is empty, a whole number is needed")
        return otherwise
    if value != int(value):
        raise ValueError(f"{name} is {value:g}, a whole number is needed")
    return int(value)

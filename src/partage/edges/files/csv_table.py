"""CSV files with named columns that people or other programs wrote; what is wrong is reported by line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from partage.edges.read_file import read_regular
from partage.errors import InputError, Problem

LARGEST_BYTES = 512 * 2**20
MOST_PROBLEMS = 10

Row = Mapping[str, str | None]
T = TypeVar("T")


def read_text(path: Path) -> str:
    """The text of a file. Raises InputError."""
    try:
        return read_regular(path, LARGEST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not text"
        raise InputError([Problem(str(path), "", "error", f"cannot be read: {why}")]) from error


def read_table(path: Path, needed: Sequence[str], take: Callable[[Row], T]) -> list[T]:
    """What ``take`` makes of each line; it raises ValueError with what is wrong with it, or WrongCell.

    Raises InputError: with the columns that are missing, or all problems of the lines, up to ten.
    """
    rows = csv.DictReader(read_text(path).splitlines())
    found: list[T] = []
    problems: list[Problem] = []
    try:
        missing = [name for name in needed if name not in (rows.fieldnames or ())]
        if missing:
            message = f"lacks the columns {', '.join(missing)}"
            hint = f"the first line names them: {','.join(needed)}"
            raise InputError([Problem(str(path), "line 1", "error", message, hint)])
        for row in rows:
            try:
                found.append(take(row))
            except ValueError as error:
                hint = error.hint if isinstance(error, WrongCell) else ""
                problems.append(Problem(str(path), f"line {rows.line_num}", "error", str(error), hint))
                if len(problems) == MOST_PROBLEMS:
                    break
    except csv.Error as error:
        problems.append(Problem(str(path), f"line {rows.line_num}", "error", f"is not CSV: {error}"))
    if problems:
        raise InputError(problems)
    return found


class WrongCell(ValueError):
    """A column of a line is wrong. hint: one sentence of advice."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def number(row: Row, name: str) -> float | None:
    """The number in a column, from 0 on; None where it is empty or there is no such column. Raises
    ValueError.
    """
    text = (row.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e18:
        raise ValueError(f"{name} is {text[:40]!r}, a number from 0 on is needed")
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

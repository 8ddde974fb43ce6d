r"""Slurm's configuration files as lines of keys and values, read as Slurm reads them; and problems of them.

``#`` begins a comment, ``\`` at the end of a line continues it, keys are read in any case, and a value with
spaces stands in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum

from partage.errors import Problem, Severity
from partage.values import Frozen

LIMIT_BYTES = 16 * 2**20
_PAIR = re.compile(r'\s*([A-Za-z0-9_.]+)\s*[-+*/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|$)')
_COMMENT = re.compile(r"(?<!\\)#.*$")


class ConfKind(StrEnum):
    """Which file of Slurm's it is."""

    GRES = "gres.conf"
    SLURM = "slurm.conf"
    CGROUP = "cgroup.conf"


class ConfLine(Frozen):
    """One line. file: as the operator named it. number: of the file's line where it begins. rest: what is no
    key and value; mostly empty.
    """

    file: str
    number: int
    pairs: tuple[tuple[str, str], ...]
    rest: str = ""

    def get(self, key: str) -> str | None:
        """The value of a key, in any case, the last one; None if the line does not have it."""
        return next((value for name, value in reversed(self.pairs) if name.lower() == key.lower()), None)

    @property
    def twice(self) -> str:
        """A key that the line has twice; empty: none."""
        keys = [name.lower() for name, _ in self.pairs]
        return next((name for at, (name, _) in enumerate(self.pairs) if name.lower() in keys[:at]), "")


class ConfFile(Frozen):
    """One file. name: as the operator named it."""

    name: str
    kind: ConfKind
    lines: tuple[ConfLine, ...]


def parse_conf(text: str, name: str, kind: ConfKind | None = None) -> ConfFile | None:
    """The file; None if it is none of the three. kind: what it is, where something else says so."""
    lines = tuple(_lines(text, name))
    kind = kind or _kind(name, lines)
    return None if kind is None else ConfFile(name, kind, lines)


def _lines(text: str, file: str) -> Iterator[ConfLine]:
    begun, held = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw).rstrip()
        begun = begun or number
        if line.endswith("\\"):
            held += line[:-1]
            continue
        whole = (held + line).strip()
        if whole:
            yield _line(file, begun, whole)
        begun, held = 0, ""
    if held.strip():
        yield _line(file, begun, held.strip())


def _line(file: str, number: int, text: str) -> ConfLine:
    if text[:8].lower() in ("include ", "include\t"):
        return ConfLine(file, number, (("Include", text[8:].strip()),))
    pairs: list[tuple[str, str]] = []
    at = 0
    while match := _PAIR.match(text, at):
        pairs.append((match[1], match[2] if match[2] is not None else match[3]))
        at = match.end()
    return ConfLine(file, number, tuple(pairs), text[at:].strip())


def _kind(name: str, lines: tuple[ConfLine, ...]) -> ConfKind | None:
    """By the file's name, else by what it says."""
    base = name.rpartition("/")[2].lower()
    if "allowed" in base:
        return None
    for word, kind in (("cgroup", ConfKind.CGROUP), ("gres", ConfKind.GRES), ("slurm", ConfKind.SLURM)):
        if word in base:
            return kind
    keys = {key.lower() for line in lines for key, _ in line.pairs}
    if {"name", "autodetect"} & keys and not {"grestypes", "slurmctldhost", "gres"} & keys:
        return ConfKind.GRES
    if any(key.startswith(("constrain", "cgroup")) for key in keys):
        return ConfKind.CGROUP
    return ConfKind.SLURM if {"grestypes", "slurmctldhost", "gres", "clustername"} & keys else None


class Notebook:
    """Collects problems; each is kept once. at: the line, or the name of a file as a whole."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}

    @property
    def problems(self) -> tuple[Problem, ...]:
        """In the order in which they were found."""
        return tuple(self._problems)

    def error(self, at: ConfLine | str, message: str, hint: str = "") -> None:
        """What does not work."""
        self._add("error", at, message, hint)

    def warn(self, at: ConfLine | str, message: str, hint: str = "") -> None:
        """What is doubtful."""
        self._add("warning", at, message, hint)

    def _add(self, severity: Severity, at: ConfLine | str, message: str, hint: str) -> None:
        file, line = (at, "") if isinstance(at, str) else (at.file, f"line {at.number}")
        self._problems[Problem(file, line, severity, message, hint)] = None

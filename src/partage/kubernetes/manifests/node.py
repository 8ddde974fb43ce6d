"""A place in a parsed document, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from partage.errors import Problem, Severity
from partage.values import Frozen

Keys = tuple[str | int, ...]
"""The way to a place in a document."""

LineOf = Callable[[Any, str | int], int | None]
"""The line of a key of a mapping, or of an item of a list; None where that is not known."""


class CheckedProblem(Frozen):
    """A problem of a file. here: only this machine, or what it offers, makes it one."""

    problem: Problem
    here: bool = False


class ManifestNode(Frozen):
    """A node of a document, with its path.

    line_of: the line of a key or item; None where that is not known. line: of this node, or of the nearest
    one above it; None: not known. owner: what it belongs to, ``Deployment/train, container main``.
    """

    file: str
    path: str
    value: Any
    line_of: LineOf | None
    line: int | None = None
    owner: str = ""

    def at(self, *keys: str | int) -> ManifestNode:
        """The node below; None as value where there is nothing."""
        place = self
        for key in keys:
            value: Any = None
            if isinstance(key, str) and isinstance(place.value, Mapping):
                value = place.value.get(key)
            if isinstance(key, int) and isinstance(place.value, list) and key < len(place.value):
                value = place.value[key]
            step = f"[{key}]" if isinstance(key, int) else f".{key}"
            line = place.line_of(place.value, key) if place.line_of else None
            path = (place.path + step).lstrip(".")
            place = replace(place, path=path, value=value, line=line or place.line)
        return place

    @property
    def items(self) -> list[ManifestNode]:
        """The nodes of a list; nothing for anything else."""
        return [self.at(n) for n in range(len(self.value))] if isinstance(self.value, list) else []

    @property
    def keys(self) -> list[str]:
        """The keys of a mapping; nothing for anything else."""
        return [str(key) for key in self.value] if isinstance(self.value, Mapping) else []

    def error(self, message: str, hint: str = "", *, here: bool = False) -> CheckedProblem:
        """What does not work."""
        return self._finding("error", message, hint, here)

    def warning(self, message: str, hint: str = "", *, here: bool = False) -> CheckedProblem:
        """What is doubtful."""
        return self._finding("warning", message, hint, here)

    def _finding(self, severity: Severity, message: str, hint: str, here: bool) -> CheckedProblem:
        line = f"line {self.line}" if self.line else ""
        text = ": ".join(part for part in (line, self.owner, message) if part)
        return CheckedProblem(Problem(self.file, self.path, severity, text, hint), here)

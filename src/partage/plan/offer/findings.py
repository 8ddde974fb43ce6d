"""Errors and warnings about a policy on a node; a problem of several GPUs is one finding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from partage import text
from partage.errors import InputError, Problem, Severity, Unsatisfiable

Kind = Literal["wrong", "impossible", "doubtful"]

MOST_PROBLEMS = 100
"""Number of problems that are listed; further ones are counted."""


class Findings:
    """Problems of one policy. file: its name in the problems."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._gpus: dict[tuple[Kind, str, str, str], list[int]] = {}

    def add(self, kind: Kind, path: str, message: str, hint: str = "", gpus: Iterable[int] = ()) -> None:
        """Add a problem. gpus: indexes of the GPUs that have it; they are put in front of the message."""
        self._gpus.setdefault((kind, path, message, hint), []).extend(gpus)

    def raise_any(self) -> None:
        """Raise InputError if something is wrong, else Unsatisfiable if something is impossible, each with
        all findings.
        """
        kinds = {kind for kind, *_ in self._gpus}
        problems = self._problems(("wrong", "impossible", "doubtful"))
        if "wrong" in kinds:
            raise InputError(problems)
        if "impossible" in kinds:
            raise Unsatisfiable(problems)

    def warnings(self) -> tuple[Problem, ...]:
        """The findings that are doubtful."""
        return self._problems(("doubtful",))

    def _problems(self, kinds: tuple[Kind, ...]) -> tuple[Problem, ...]:
        rows = [row for kind in kinds for row in self._gpus.items() if row[0][0] == kind]
        listed = tuple(self._problem(*key, gpus) for key, gpus in rows[:MOST_PROBLEMS])
        if len(rows) <= MOST_PROBLEMS:
            return listed
        rest = f"and {len(rows) - MOST_PROBLEMS} more problems"
        return (*listed, Problem(self._file, "", listed[-1].severity, rest))

    def _problem(self, kind: Kind, path: str, message: str, hint: str, gpus: list[int]) -> Problem:
        said = f"{text.gpus(gpus)}: {message}" if gpus else message
        return Problem(self._file, path, _severity(kind), said, hint)


def _severity(kind: Kind) -> Severity:
    return "warning" if kind == "doubtful" else "error"

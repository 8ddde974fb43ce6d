"""Problems of Slurm's files, each with file and line."""

from __future__ import annotations

from partage.errors import Problem, Severity


class Notebook:
    """Collects problems; each is kept once."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}

    @property
    def problems(self) -> tuple[Problem, ...]:
        """In the order in which they were found."""
        return tuple(self._problems)

    def error(self, file: str, line: int, message: str, hint: str = "") -> None:
        """What does not work."""
        self._add("error", file, line, message, hint)

    def warn(self, file: str, line: int, message: str, hint: str = "") -> None:
        """What is doubtful."""
        self._add("warning", file, line, message, hint)

    def _add(self, severity: Severity, file: str, line: int, message: str, hint: str) -> None:
        self._problems[Problem(file, f"line {line}" if line else "", severity, message, hint)] = None

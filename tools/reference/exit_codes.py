"""Exit codes, from the errors that Partage raises."""

from __future__ import annotations

from collections.abc import Iterator

from partage.cli import main
from partage.errors import PartageError
from tools.reference.tables import plain, table


def exit_codes() -> str:
    """The table of exit codes."""
    meanings: dict[int, list[str]] = {}
    for error in PartageError.__subclasses__():
        if error.__module__ == PartageError.__module__:
            meanings.setdefault(error.exit_code, []).append(plain(error.__doc__))
    rows = [("0", "Done, or true."), ("1", "False: the answer is no.")]
    rows += [(str(code), " ".join(texts)) for code, texts in sorted(meanings.items())]
    return table(("exit code", "means"), [*rows, *_signals()])


def _signals() -> Iterator[tuple[str, str]]:
    yield str(main.INTERRUPTED), "Ended by Ctrl-C."
    yield str(main.PIPE_CLOSED), "The reader of the pipe has ended."

"""How the verbs write: documents, problems, tables, files.

Imported by every verb, also the agent: no slow imports at the top.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.codec.values import to_plain
from partage.errors import InputError, Problem, wrong_input
from partage.text import printable, printable_json, printable_lines

if TYPE_CHECKING:
    from partage.answers.render.terminal import Console


OUTPUT_KEY = "partage.output"
"""Key of ``-o`` in click's context, so that errors are written in the same format."""
HEADERS_KEY = "partage.headers"
"""Key of ``--no-headers`` in click's context."""
WIDE = "wide"


def print_document(answer: object, output: str) -> None:
    """Write a document to stdout, as ``json`` or ``yaml``."""
    plain = to_plain(answer)
    if output == "yaml":
        import yaml

        text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110)
        if text != printable_lines(text):  # all that is not ASCII as escapes
            text = yaml.safe_dump(plain, sort_keys=False, width=110)
        sys.stdout.write(text)
    else:
        sys.stdout.write(printable_json(json.dumps(plain, indent=2, ensure_ascii=False)) + "\n")


def say(text: str, *, err: bool = False) -> None:
    """Write one line to stdout, or stderr."""
    click.echo(printable(text), err=err)


def say_lines(text: str) -> None:
    """Write whole lines to stdout."""
    click.echo(printable_lines(text), nl=False)


def print_problems(problems: Iterable[Problem]) -> None:
    """One line per problem on stderr."""
    for problem in problems:
        say(f"{problem.severity}: {problem}".replace("\n", " "), err=True)


def console() -> Console:
    """The console for tables and pictures, as ``-o wide`` and ``--no-headers`` ask for it."""
    from partage.answers.render.terminal import open_console

    ctx = click.get_current_context(silent=True)
    headers = True if ctx is None else ctx.meta.get(HEADERS_KEY, True)
    return open_console(wide=is_wide(), headers=headers)


def is_wide() -> bool:
    """Whether ``-o wide`` asks for all there is."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(OUTPUT_KEY) == WIDE


def say_names(names: Iterable[str]) -> None:
    """``-o name``: one in a line."""
    for name in names:
        say(name)


def write_file(path: str, content: str | bytes) -> None:
    """Write a file, standard output for ``-``. Raises InputError if that fails."""
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(content.encode() if isinstance(content, str) else content)
        return
    try:
        Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise cannot_be_written(path, error) from error


def cannot_be_written(path: str, error: OSError) -> InputError:
    """Why a file could not be written, with what is missing."""
    directory = Path(path).parent
    hint = "" if directory.is_dir() else f"there is no directory {directory}"
    return wrong_input(path, f"cannot be written: {error.strerror}", hint)


def print_findings(files: Sequence[str], problems: Sequence[Problem]) -> None:
    """All problems, one below the other, and how many they are."""
    from rich.text import Text

    from partage.text import count_of

    output = console()
    styles = {"error": "bold red", "warning": "yellow"}
    for problem in problems:
        severity = (problem.severity, styles[problem.severity])
        output.print(Text.assemble(severity, f": {problem.sentence}"), soft_wrap=True)
        if problem.hint:
            output.print(Text.assemble("  ", (problem.hint, "dim")), soft_wrap=True)
    errors = sum(problem.severity == "error" for problem in problems)
    text = f"{count_of(errors, 'error')}, {count_of(len(problems) - errors, 'warning')}"
    output.print(f"{count_of(len(files), 'file')}: {text if problems else 'no problems'}")

"""What ``bench`` and ``prove`` have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from partage.answers import common_output
from partage.errors import wrong_input

if TYPE_CHECKING:
    from rich.console import RenderableType

    from partage.answers.documents.lab import DocumentKind

T = TypeVar("T")

DIRECTORY = click.Path(path_type=Path, file_okay=False)

mps_pipe_option = click.option(
    "--mps-pipe",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="CUDA_MPS_PIPE_DIRECTORY of an MPS daemon (default: the agent's, if any).",
)


def print_progress(text: str) -> None:
    """Print progress on stderr."""
    common_output.say(text, err=True)


def check_writable(path: str | Path, folder: Path) -> None:
    """Check that a file can be written, before anything runs. Raises InputError."""
    if not os.access(folder, os.W_OK):
        message = f"cannot be written: nothing can be put into {folder}"
        raise wrong_input(path, message)


def print_report(
    report: T,
    kind: DocumentKind[T],
    output: str,
    lines: Callable[[T], Iterable[RenderableType]],
) -> None:
    """The answer: tables, or the document."""
    if output != "table":
        common_output.print_document(kind.to_document(report), output)
        return
    console = common_output.console()
    for line in lines(report):
        console.print(line)

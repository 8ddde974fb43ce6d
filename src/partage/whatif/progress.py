"""How far a trace is played, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from partage.answers.render.terminal import Console

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TextColumn("pods"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"playing {name}", total=None)
        yield lambda done, count: progress.update(task, completed=done, total=count)

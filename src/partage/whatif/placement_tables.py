"""The answer of ``simulate --trace --placement`` for people: a table, and a plot by matplotlib."""

from __future__ import annotations

import io
from pathlib import Path

from rich.table import Table

from partage.answers.render.drawing import DIM, INK
from partage.answers.render.tables import plain_table
from partage.answers.wording import shorten
from partage.text import count_of
from partage.whatif.decide.texts import pods_of
from partage.whatif.placement_document import PlacementsDocument
from partage.whatif.plot import COLOURS, DPI

_LOADS = (50, 60, 70, 80, 90, 100, 110, 120, 130)


def placement_title(answer: PlacementsDocument) -> str:
    """What is placed where."""
    trace = shorten(Path(answer.trace).name, 40)
    nodes, gpus = count_of(answer.fleet.nodes, "node"), count_of(answer.fleet.gpus, "GPU")
    return f"{pods_of(answer.pods)} like those of {trace} on {nodes} with {gpus}"


def placements_table(answer: PlacementsDocument) -> Table:
    """One column for each way to choose: percent of the GPUs that pods have, by how many they asked for."""
    names = [str(result.placement) for result in answer.placements]
    table = plain_table("", "GPUs that pods asked for", *names, right=names)
    reached = sorted(set().union(*(result.allocation for result in answer.placements)))
    loads = [load for load in reached if load in _LOADS] or reached
    now = (min(result.allocation) for result in answer.placements)  # not 0: the curve begins at what is there
    for load in sorted({*loads, *reached[-1:], *filter(None, now)}):
        cells = (result.allocation.get(load) for result in answer.placements)
        table.add_row(f"{load} %", *("-" if cell is None else f"{cell:.2f} %" for cell in cells))
    table.add_section()
    table.add_row("pods placed", *(f"{result.placed:,}" for result in answer.placements))
    return table


def placement_plot(answer: PlacementsDocument, ending: str) -> bytes:
    """The file's content; ``check_plot`` has checked that matplotlib is there. ending: ``.png``, ``.svg``."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"text.parse_math": False}):
        figure = Figure((8.4, 5.2), layout="constrained")
        axes = figure.subplots()
        for number, result in enumerate(answer.placements):
            loads = list(result.allocation)
            axes.plot(
                loads,
                list(result.allocation.values()),
                color=COLOURS[number % len(COLOURS)],
                label=f"{result.placement}: {list(result.allocation.values())[-1]:.1f} %",
            )
        lowest = min(min(list(result.allocation.values())[-1:]) for result in answer.placements)
        axes.axline((lowest, lowest), slope=1, color=DIM, linewidth=1, linestyle=":")
        # Below this all are alike: what is asked for is given.
        axes.set_xlim(max(0, lowest - 12), answer.load)
        axes.set_ylim(max(0, lowest - 12), 100)
        axes.set_xlabel("GPUs that pods asked for, percent of all")
        axes.set_ylabel("GPUs that pods have, percent of all")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right", frameon=False)
        figure.suptitle(placement_title(answer), x=0.01, ha="left", fontsize=10, weight="bold", color=INK)
        file = io.BytesIO()
        figure.savefig(file, format=ending.removeprefix("."), dpi=DPI)
    return file.getvalue()

"""The plots of ``simulate --trace``, by matplotlib; a colour for each policy or placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage.answers.render.drawing import DIM, INK, plotted
from partage.whatif.decide.summary import PolicyResult
from partage.whatif.document import PlacementsDocument, WhatIfDocument
from partage.whatif.tables import placement_title, title_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#00738c", "#a86200", "#7b3fa0", "#2e7d32", "#b3261e", "#66727f")
_INCHES = (8.4, 6.2)
_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))


def plot(answer: WhatIfDocument, ending: str) -> bytes:
    """As ``plotted``."""
    return plotted(lambda: _figure(answer), ending)


def _figure(answer: WhatIfDocument) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(_INCHES, layout="constrained")
    use, waits = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    size, unit = _time_unit(answer.span_s)
    for number, result in enumerate(answer.policies):
        colour = _COLOURS[number % len(_COLOURS)]
        times = _times(result, answer.span_s, size)
        use.step(times, [at.held for at in result.over_time], where="post", color=colour, label=result.policy)
        use.step(
            times,
            [at.asked for at in result.over_time],
            where="post",
            color=colour,
            linestyle=":",
            linewidth=1.2,
        )
        waits.step(times, [at.waiting for at in result.over_time], where="post", color=colour)
    use.axhline(answer.fleet.gpus, color=DIM, linewidth=1)
    use.plot([], [], color=INK, label="held")
    use.plot([], [], color=INK, linestyle=":", label="asked for")
    use.plot([], [], color=DIM, linewidth=1, label="all GPUs of the fleet")
    use.set_ylabel("GPUs")
    waits.set_ylabel("pods that wait")
    waits.set_xlabel(f"time, {unit}" if answer.span_s else "pods created")
    for axes in (use, waits):
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title_line(answer, short=True), x=0.01, ha="left", fontsize=11, weight="bold", color=INK)
    figure.legend(loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    return figure


def _time_unit(span_s: float) -> tuple[float, str]:
    return next((size, unit) for least_s, size, unit in _UNITS if span_s >= least_s)


def _times(result: PolicyResult, span_s: float, size: float) -> list[float]:
    """Since the first event; pods created so far where no time passes."""
    if not span_s:
        return [float(at.created) for at in result.over_time]
    first_s = result.over_time[0].at_s
    return [(at.at_s - first_s) / size for at in result.over_time]


def placement_plot(answer: PlacementsDocument, ending: str) -> bytes:
    """As ``plotted``."""
    return plotted(lambda: _placement_figure(answer), ending)


def _placement_figure(answer: PlacementsDocument) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure((8.4, 5.2), layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(answer.placements):
        loads = list(result.allocation)
        axes.plot(
            loads,
            list(result.allocation.values()),
            color=_COLOURS[number % len(_COLOURS)],
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
    return figure

"""The plot of a bench run, by matplotlib: throughput relative to one process alone, and latencies.

A bar is a median; the mark on it reaches from the lowest to the highest repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from partage.answers.render.drawing import DIM, INK, LINE, check_picture_name, plotted
from partage.lab.bench.model import BenchCell, BenchReport, Experiment
from partage.lab.bench.summary import Spread, latency_ms, ratio, three_digits, throughput
from partage.lab.place import TenantMode
from partage.text import count_of
from partage.values import Frozen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (6.2, 3.6)
"""Width and height of one panel."""
_HEAD_INCHES = 1.1
_WIDEST_BAR, _NUMBER = 0.26, 0.06
"""Width of a bar as a part of its group; height of a number as a part of the highest bar."""

_COLOURS = {
    TenantMode.ALONE: ("#66727f", "#d3d8de"),
    TenantMode.SEQUENTIAL: ("#aab3bc", LINE),
    TenantMode.TIME_SLICING: ("#a86200", "#efd3a4"),
    TenantMode.MPS: ("#00738c", "#a9dbe6"),
    TenantMode.MIG: ("#7b3fa0", "#d9c2ea"),
    TenantMode.PARALLEL: ("#2e7d32", "#b5d9b7"),
}
"""Colours of the bar and of the paler bar behind it; where possible those of the picture of a node."""


class PlotBar(Frozen):
    """spread: the bar. behind: a paler, higher bar behind it."""

    mode: TenantMode
    spread: Spread
    behind: Spread | None = None

    @property
    def top(self) -> float:
        return max(self.spread.high, self.behind.high if self.behind else 0.0)


class PlotPanel(Frozen):
    """groups: label and bars. line: a value that is drawn as a horizontal line; 0: none."""

    title: str
    unit: str
    groups: tuple[tuple[str, tuple[PlotBar, ...]], ...]
    line: float = 0.0


def plot_file(bench: BenchReport, path: str) -> bytes:
    """The content of a picture file of that name."""
    return plotted(lambda: figure(bench), check_picture_name(path))


def figure(bench: BenchReport) -> Figure:
    """All panels that have data, two in a row."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    shown = [panel for panel in panels(bench) if panel.groups]
    beside = min(2, max(1, len(shown)))
    rows = math.ceil(len(shown) / beside)
    size = (beside * _INCHES[0], rows * _INCHES[1] + _HEAD_INCHES)
    found = Figure(size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    found.suptitle(_title(bench), x=0.01, ha="left", fontsize=13, weight="bold", color=INK)
    if shown:
        grid = found.subplots(rows, beside, squeeze=False).flat
        for axes, panel in zip(grid, shown, strict=False):
            _draw(axes, panel)
        for axes in list(grid)[len(shown) :]:
            axes.set_axis_off()
    used = {bar.mode for panel in shown for _, bars in panel.groups for bar in bars}
    marks = [Patch(color=_COLOURS[mode][0], label=mode.words) for mode in _COLOURS if mode in used]
    found.legend(
        handles=marks, loc="outside lower left", ncols=max(1, len(marks)), frameon=False, fontsize=9,
        labelcolor=DIM, title=_caption(bench), title_fontproperties={"size": 9}, alignment="left",
    )  # fmt: skip
    return found


# --- what is drawn -----------------------------------------------------------------------------


def panels(bench: BenchReport) -> Iterator[PlotPanel]:
    """Every panel, also those without data."""
    for experiment, words in (
        (Experiment.SMALL, "Small kernels: throughput of all processes together"),
        (Experiment.SATURATING, "Saturating kernels: throughput of all processes together"),
        (Experiment.INFERENCE, "Inference: requests of all processes together"),
    ):
        alone = bench.cell(experiment, TenantMode.ALONE, 1)
        if alone is not None:
            relative = _relative(throughput(alone))
            yield PlotPanel(words, "times one process alone", _groups(bench, experiment, relative), line=1.0)
    latencies = _groups(bench, Experiment.INFERENCE, _latency)
    yield PlotPanel("Inference: latency, p50 and p99 (pale)", "ms", latencies)


def _relative(alone: Spread) -> Callable[[BenchCell], PlotBar]:
    """Relative to the median of one process alone."""
    base = Spread(alone.median, alone.median, alone.median, alone.count)
    return lambda cell: PlotBar(cell.mode, ratio(throughput(cell), base))


def _latency(cell: BenchCell) -> PlotBar:
    return PlotBar(cell.mode, latency_ms(cell, 50), latency_ms(cell, 99))


def _groups(
    bench: BenchReport, experiment: Experiment, bar: Callable[[BenchCell], PlotBar]
) -> tuple[tuple[str, tuple[PlotBar, ...]], ...]:
    """One group for each number of processes."""
    cells = [
        cell for cell in bench.cells if cell.experiment is experiment and cell.mode in _COLOURS and cell.good
    ]
    return tuple(
        (
            count_of(count, "process", "processes"),
            tuple(bar(cell) for cell in cells if cell.processes == count),
        )
        for count in sorted({cell.processes for cell in cells})
    )


def _title(bench: BenchReport) -> str:
    machine = bench.machine
    return f"partage bench: {machine.gpu or f'CPU, no GPU: {machine.processor or machine.system}'}"


def _caption(bench: BenchReport) -> str:
    torch, driver = bench.versions.get("torch"), bench.machine.driver
    versions = [f"driver {driver}"] if driver else []
    versions.append(f"PyTorch {torch}" if torch else "no PyTorch")
    marks = "bars are medians, marks reach from lowest to highest repeat"
    return f"{', '.join(versions)}; {bench.at[:10]}; {marks}"


# --- how it is drawn ---------------------------------------------------------------------------


def _draw(axes: Axes, panel: PlotPanel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=11, weight="bold", color=INK)
    axes.set_ylabel(panel.unit, fontsize=9, color=DIM)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.yaxis.grid(visible=True, color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, length=0, colors=DIM)
    axes.margins(y=0.12)
    if panel.line:
        axes.axhline(panel.line, color=INK, linewidth=0.8)
    top = max(bar.top for _, bars in panel.groups for bar in bars)
    for place, (_, bars) in enumerate(panel.groups):
        wide = min(_WIDEST_BAR, 0.9 / len(bars))
        for number, bar in enumerate(bars):
            _draw_bar(axes, place + (number - (len(bars) - 1) / 2) * wide, wide, bar, _NUMBER * top)
    axes.set_xticks(range(len(panel.groups)), [name for name, _ in panel.groups], color=INK)


def _draw_bar(axes: Axes, x: float, wide: float, bar: PlotBar, room: float) -> None:
    """room: height of a number in units of the axis."""
    full, pale = _COLOURS[bar.mode]
    mark = {"elinewidth": 1, "capsize": 2.5, "ecolor": INK}
    for spread, colour in ((bar.behind, pale), (bar.spread, full)):
        if spread is None:
            continue
        reach = [[spread.median - spread.low], [spread.high - spread.median]]
        axes.bar(x, spread.median, wide * 0.9, color=colour, yerr=reach, error_kw=mark)
        if spread is bar.spread and bar.behind is not None and bar.behind.low - spread.high < room:
            continue
        number = three_digits(spread.median)
        axes.annotate(number, (x, spread.high), (0, 3), textcoords="offset points", ha="center", fontsize=7.5)

"""The plot of a run: throughput in multiples of one process alone, and latencies; boxes and labels.

Every bar is a median, the mark on it reaches from the lowest to the highest repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from partage.faces.bench.model import MODE_WORDS, Bench, Cell, Experiment, Mode
from partage.faces.bench.summary import Spread, digits, latency_ms, ratio, throughput
from partage.faces.render.drawing import DIM, INK, LINE, PAPER, Box, Drawing, Label, Shape
from partage.faces.words import shorten

_MARGIN, _GAP = 24, 28
_WIDTH, _HEIGHT = 560, 310
_LEFT, _TOP, _FOOT = 46, 56, 30
"""Of a panel: room for the numbers of its axis, for its title, for what stands below the axis."""
_HEAD, _LEGEND = 64, 34
_LETTER = 0.57
_WIDEST_BAR, _NUMBER = 46, 18

_COLOURS = {
    Mode.ALONE: "#66727f",
    Mode.SEQUENTIAL: "#aab3bc",
    Mode.TIME_SLICING: "#a86200",
    Mode.MPS: "#00738c",
    Mode.MIG: "#7b3fa0",
    Mode.PARALLEL: "#2e7d32",
}
"""Those of the cards' picture, where they mean the same."""
_PALE = {
    Mode.ALONE: "#d3d8de",
    Mode.TIME_SLICING: "#efd3a4",
    Mode.MPS: "#a9dbe6",
    Mode.MIG: "#d9c2ea",
    Mode.PARALLEL: "#b5d9b7",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """spread: the full bar. behind: a paler, higher one behind it."""

    mode: Mode
    spread: Spread
    behind: Spread | None = None

    @property
    def top(self) -> float:
        return max(self.spread.high, self.behind.high if self.behind else 0.0)


@dataclass(frozen=True, slots=True)
class Panel:
    """groups: what stands below the axis, and the bars above it. line: a value drawn across, or 0."""

    title: str
    unit: str
    groups: tuple[tuple[str, tuple[Bar, ...]], ...]
    line: float = 0.0


def chart(bench: Bench) -> Drawing:
    """All panels that there are figures for, two beside each other."""
    shown = [panel for panel in _panels(bench) if panel.groups]
    beside = min(2, max(1, len(shown)))
    rows = math.ceil(len(shown) / beside)
    width = 2 * _MARGIN + beside * (_WIDTH + _GAP) - _GAP
    height = _HEAD + rows * (_HEIGHT + _GAP) + _LEGEND
    shapes: list[Shape] = [Box(0, 0, width, height, PAPER)]
    shapes += _title(bench, width)
    for number, panel in enumerate(shown):
        x = _MARGIN + number % beside * (_WIDTH + _GAP)
        shapes += _panel(panel, x, _HEAD + number // beside * (_HEIGHT + _GAP))
    shapes += _legend(shown, height - _LEGEND + 4)
    return Drawing(width, height, tuple(shapes))


# --- what is drawn -----------------------------------------------------------------------------


def _panels(bench: Bench) -> Iterator[Panel]:
    for experiment, words in (
        (Experiment.SMALL, "Small kernels: throughput of all processes together"),
        (Experiment.SATURATING, "Saturating kernels: throughput of all processes together"),
        (Experiment.INFERENCE, "Inference: requests of all processes together"),
    ):
        alone = bench.cell(experiment, Mode.ALONE, 1)
        if alone is not None:
            relative = _relative(throughput(alone))
            yield Panel(words, "times one process alone", _groups(bench, experiment, relative), line=1.0)
    yield Panel(
        "Inference: latency, p50 and p99 (pale)", "ms", _groups(bench, Experiment.INFERENCE, _latency)
    )


def _relative(alone: Spread) -> Callable[[Cell], Bar]:
    """By the median of one process alone: its own spread shows at its own bar."""
    base = Spread(alone.median, alone.median, alone.median, alone.count)
    return lambda cell: Bar(cell.key.mode, ratio(throughput(cell), base))


def _latency(cell: Cell) -> Bar:
    return Bar(cell.key.mode, latency_ms(cell, 50), latency_ms(cell, 99))


def _groups(
    bench: Bench, experiment: Experiment, bar: Callable[[Cell], Bar]
) -> tuple[tuple[str, tuple[Bar, ...]], ...]:
    """One group for each number of processes."""
    cells = [
        one
        for one in bench.cells
        if one.key.experiment is experiment and one.key.mode in _COLOURS and one.good
    ]
    counts = sorted({cell.key.processes for cell in cells})
    return tuple(
        (
            "1 process" if count == 1 else f"{count} processes",
            tuple(bar(cell) for cell in cells if cell.key.processes == count),
        )
        for count in counts
    )


# --- shapes ------------------------------------------------------------------------------------


def _title(bench: Bench, width: int) -> Iterator[Shape]:
    machine = bench.machine
    device = machine.gpu or f"CPU, no GPU: {machine.processor or machine.system}"
    yield Label(_MARGIN, 32, _fitting(f"partage bench: {device}", width - 2 * _MARGIN, 17), 17, bold=True)
    versions = [f"driver {machine.driver}"] if machine.driver else []
    versions += [f"PyTorch {bench.versions['torch']}"] if bench.versions.get("torch") else ["no PyTorch"]
    said = (
        f"{', '.join(versions)}; {bench.at[:10]}; bars are medians, marks reach from lowest to highest repeat"
    )
    yield Label(_MARGIN, 52, _fitting(said, width - 2 * _MARGIN, 12), 12, DIM)


def _panel(panel: Panel, x: int, y: int) -> Iterator[Shape]:
    yield Label(x, y + 20, panel.title, 14, INK, bold=True)
    yield Label(x, y + 38, panel.unit, 11, DIM)
    step, top = scale(max([panel.line, *(bar.top for _, bars in panel.groups for bar in bars)]))
    left, width = x + _LEFT, _WIDTH - _LEFT
    floor, room = y + _HEIGHT - _FOOT, _HEIGHT - _FOOT - _TOP

    def at(value: float) -> float:
        return floor - value / top * room

    for tick in range(round(top / step) + 1):
        yield Box(left, at(tick * step), width, 1, LINE)
        yield Label(left - 8, at(tick * step) + 4, f"{tick * step:g}", 11, DIM, at_end=True)
    if panel.line:
        yield Box(left, at(panel.line), width, 1, INK)
    each = width / len(panel.groups)
    for number, (name, bars) in enumerate(panel.groups):
        middle = left + (number + 0.5) * each
        yield from _bars(bars, middle, each, at)
        yield Label(middle - _wide(name, 12) / 2, floor + 20, name, 12, INK)
    yield Box(left, floor, width, 2, DIM)


def _bars(bars: Sequence[Bar], middle: float, each: float, at: Callable[[float], float]) -> Iterator[Shape]:
    wide = min(_WIDEST_BAR, each * 0.86 / len(bars))
    for place, bar in enumerate(bars):
        x = middle + (place - len(bars) / 2) * wide
        if bar.behind is not None:
            yield _bar(x + 2, wide - 4, bar.behind.median, at, _PALE.get(bar.mode, LINE))
            yield from _spread(bar.behind, x + wide / 2, at)
        yield _bar(x + 2, wide - 4, bar.spread.median, at, _COLOURS[bar.mode])
        yield from _spread(bar.spread, x + wide / 2, at)
        number = _number((bar.behind or bar.spread).median, x + wide / 2, at(bar.top) - 5, wide)
        yield Box(number.x, number.y - 10, _wide(number.text, number.size), 12, PAPER)
        yield number
        if bar.behind is not None and at(bar.spread.high) - at(bar.behind.low) > _NUMBER:
            yield _number(bar.spread.median, x + wide / 2, at(bar.spread.high) - 4, wide)


def _number(value: float, middle: float, y: float, width: float) -> Label:
    text = digits(value)
    size = 11 if _wide(text, 11) <= width + 2 else 9
    return Label(middle - _wide(text, size) / 2, y, text, size, INK)


def _bar(x: float, width: float, high: float, at: Callable[[float], float], colour: str) -> Box:
    return Box(x, at(high), width, at(0) - at(high), colour)


def _spread(spread: Spread, x: float, at: Callable[[float], float]) -> Iterator[Shape]:
    """A mark from the lowest to the highest, where that can be seen."""
    if at(spread.low) - at(spread.high) >= 2:
        yield Box(x - 1, at(spread.high), 2, at(spread.low) - at(spread.high), INK)
        yield Box(x - 4, at(spread.high), 8, 1, INK)
        yield Box(x - 4, at(spread.low), 8, 1, INK)


def _legend(panels: Sequence[Panel], y: int) -> Iterator[Shape]:
    used = {bar.mode for panel in panels for _, bars in panel.groups for bar in bars}
    x: float = _MARGIN
    for mode, colour in _COLOURS.items():
        if mode in used:
            yield Box(x, y, 22, 14, colour)
            yield Label(x + 28, y + 12, MODE_WORDS[mode], 12, DIM)
            x += 28 + _wide(MODE_WORDS[mode], 12) + 18


# --- measures ----------------------------------------------------------------------------------


def scale(highest: float) -> tuple[float, float]:
    """The step of an axis, 1, 2 or 5 times a power of ten, and its end: room for a number above the bars."""
    wanted = max(highest, 1e-9) * 1.12
    power = 10.0 ** math.floor(math.log10(wanted / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if wanted / (power * factor) <= 6)
    return step, step * math.ceil(wanted / step)


def _wide(text: str, size: int) -> float:
    return len(text) * size * _LETTER


def _fitting(text: str, width: float, size: int) -> str:
    return shorten(text, int(width / (size * _LETTER)))

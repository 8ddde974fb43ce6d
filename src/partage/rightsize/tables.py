"""The answer of ``rightsize`` for people: a table, sentences, and the plot, by matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from partage.answers.render.drawing import DIM, INK, TROUBLE, plotted
from partage.answers.render.tables import plain_table
from partage.answers.wording import shorten
from partage.rightsize.document import RightsizeDocument, WorkloadRow
from partage.text import count_of, listed, printable
from partage.units import GIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def workloads_table(answer: RightsizeDocument) -> Table:
    """One row for each workload. With units of memory, their number takes the place of shares."""
    unit = answer.unit_bytes
    ways = ("Time-slicing", "MPS", "MIG") if unit is None else (f"Units of {format_bytes(unit)}",)
    table = plain_table("", "Workload", "Seen", "Peak", "Busy", "Now", "Needs", *ways, "Sure")
    for workload in answer.workloads:
        seen = f"{count_of(workload.runs, 'run')}, {workload.hours:g} h"
        busy = "?" if workload.sm_p95 is None else f"{workload.sm_p95:.0%}"
        now = "?" if workload.now_bytes is None else format_bytes(workload.now_bytes)
        start = (workload.name, seen, format_bytes(workload.peak_bytes), busy, now)
        if workload.doubt is not None:
            table.add_row(*start, "?", *("" for _ in ways), "")
            continue
        mig = f"{workload.mig} ({workload.mig_instances})" if workload.mig else "-"
        shares = (_split(workload.time_slicing), _split(workload.mps), mig)
        asked = shares if unit is None else (str(workload.units or "whole GPU"),)
        table.add_row(*start, format_bytes(workload.need_bytes or 0), *asked, workload.confidence)
    return table


def _split(number: int | None) -> str:
    return f"1/{number}" if number and number > 1 else "whole GPU"


def remarks(answer: RightsizeDocument) -> Iterator[str]:
    """Why nothing is recommended, what to do then, and what is risky. What is so for several workloads is
    said once."""
    refused: dict[tuple[str, str], list[WorkloadRow]] = {}
    risky: dict[str, list[WorkloadRow]] = {}
    for workload in answer.workloads:
        if workload.doubt is not None:
            refused.setdefault((workload.reason, workload.advice), []).append(workload)
        for risk in workload.risks:
            risky.setdefault(risk, []).append(workload)
    for (reason, advice), workloads in refused.items():
        yield f"{_names(workloads)}: cannot tell: {reason}. What to do: {advice}"
    for risk, workloads in risky.items():
        yield f"{_names(workloads)}: {risk}"


def _names(workloads: Sequence[WorkloadRow]) -> str:
    return listed([workload.name for workload in workloads], 3)


def fleet_sentence(answer: RightsizeDocument) -> str:
    """What the workloads take together."""
    fleet = answer.fleet
    ran = f"At most {count_of(fleet.containers, 'container')} ran at the same time."
    if fleet.gpus_then is None:
        return f"{ran} How many GPUs they need is not known: some workloads have neither a size nor a share."
    then = count_of(fleet.gpus_then, "GPU")
    if fleet.gpus_now is None:
        return f"{ran} With these sizes they fit on {then}."
    return (
        f"{ran} Their shares now take {count_of(fleet.gpus_now, 'GPU')}; with these sizes they fit on {then}."
    )


_NOW, _PEAK = "#d3dbe3", "#00738c"
_ROW_INCHES, _WIDTH_INCHES = 0.42, 8.0
_MOST_ROWS = 60


def plot(answer: RightsizeDocument, ending: str) -> bytes:
    """As ``plotted``."""
    return plotted(lambda: _figure(answer), ending)


def _figure(answer: RightsizeDocument) -> Figure:
    from matplotlib.figure import Figure

    rows = answer.workloads[:_MOST_ROWS][::-1]
    figure = Figure(figsize=(_WIDTH_INCHES, 1.6 + _ROW_INCHES * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        if row.now_bytes is not None:
            axes.barh(place, row.now_bytes / GIB, 0.8, color=_NOW)
        axes.barh(place, row.peak_bytes / GIB, 0.4, color=_PEAK)
        if row.doubt is None and row.need_bytes is not None:
            axes.plot([row.need_bytes / GIB] * 2, [place - 0.4, place + 0.4], color=INK, linewidth=2)
        else:
            right = max(row.peak_bytes, row.now_bytes or 0) / GIB
            axes.text(right, place, f"  cannot tell: {row.doubt}", va="center", color=TROUBLE, fontsize=8)
    if any(workload_row.now_bytes is not None for workload_row in rows):
        axes.barh(0, 0, color=_NOW, label="its share now")
    axes.barh(0, 0, color=_PEAK, label="highest use")
    axes.plot([], [], color=INK, linewidth=2, label="needs, with headroom")
    axes.axvline(answer.gpu_memory_bytes / GIB, color=DIM, linestyle=":", label=answer.gpu)
    axes.set_yticks(
        range(len(rows)), [shorten(printable(workload_row.name), 48) for workload_row in rows], fontsize=8
    )
    more = len(answer.workloads) - len(rows)
    axes.set_xlabel("GPU memory, GiB" + (f"   ({more} more workloads are not drawn)" if more else ""))
    axes.spines[["top", "right"]].set_visible(False)
    above = (0.5, 1.0 + 0.9 / (1 + len(rows)))
    axes.legend(loc="upper center", bbox_to_anchor=above, ncols=4, fontsize=8, frameon=False)
    return figure

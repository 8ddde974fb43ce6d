"""The plot of ``rightsize``, by matplotlib: what each workload used, has and needs."""

from __future__ import annotations

import io

from partage.answers.render.drawing import DIM, INK, TROUBLE
from partage.answers.wording import shorten
from partage.rightsize.document import RightsizeDocument
from partage.text import printable
from partage.units import GIB

_NOW, _PEAK = "#d3dbe3", "#00738c"
_ROW_INCHES, _WIDTH_INCHES = 0.42, 8.0
_MOST_ROWS = 60


def plot(answer: RightsizeDocument, ending: str) -> bytes:
    """The file's content; ``check_plot`` has checked that matplotlib is there. ending: ``.png``, ``.svg``."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # a ``$`` in a name begins no formula
        return _plot(answer, ending)


def _plot(answer: RightsizeDocument, ending: str) -> bytes:
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
    file = io.BytesIO()
    figure.savefig(file, format=ending.removeprefix("."), dpi=160)
    return file.getvalue()

"""The table of a packing: GPUs with equal layouts and equal changes are one row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from partage.answers.render.tables import plain_table
from partage.answers.wording import product_word
from partage.model.layout import LayoutItem
from partage.packing.decide.pack import PackedGpu, Packing
from partage.packing.document import demand_words, places, served_counts
from partage.text import numbers
from partage.values import Frozen

MOST_ROWS = 24


class _Kind(Frozen):
    product: str
    layout: str
    serves: str
    destroyed: str
    mode_change: bool


def packing_table(packing: Packing) -> tuple[Table, int]:
    """The table with the largest rows, and the number of GPUs in rows that are left out."""
    by_kind: dict[_Kind, list[PackedGpu]] = {}
    for one in packing.assignments:
        by_kind.setdefault(_kind(one), []).append(one)
    changes = any(kind.destroyed for kind in by_kind)
    title = f"{demand_words(packing.demand.wanted)} on {packing.gpus_used} of {packing.available} GPUs"
    columns = ("GPUs", "Where", "Product", "Layout", "Serves", *(("Destroyed",) if changes else ()))
    table = plain_table(title, *columns, right=("GPUs",))
    rows = sorted(by_kind.items(), key=lambda row: -len(row[1]))
    for kind, members in rows[:MOST_ROWS]:
        cells = (str(len(members)), _where(members), kind.product, kind.layout, kind.serves)
        table.add_row(*cells, *((kind.destroyed,) if changes else ()))
    return table, sum(len(members) for _, members in rows[MOST_ROWS:])


def _kind(one: PackedGpu) -> _Kind:
    return _Kind(
        product=product_word(one.candidate.gpu.product),
        layout=compact_layout(one.layout),
        serves=demand_words(served_counts(one.serves).items()),
        destroyed=compact_layout([gone.item for gone in one.disturbed]),
        mode_change=not one.candidate.gpu.mig_enabled,
    )


def compact_layout(items: Sequence[LayoutItem]) -> str:
    """``1g.10gb@0-3  3g.40gb@4``."""
    starts: dict[str, list[int]] = {}
    for item in items:
        starts.setdefault(str(item.profile), []).append(item.start or 0)
    return "  ".join(_at(name, at) for name, at in starts.items())


def _at(name: str, starts: Sequence[int]) -> str:
    if len(set(starts)) < len(starts):
        return "  ".join(f"{name}@{start}" for start in starts)
    return f"{name}@{numbers(starts).replace(' ', '')}"


def _where(members: Sequence[PackedGpu]) -> str:
    return places([(one.candidate.machine, one.candidate.gpu.index) for one in members])

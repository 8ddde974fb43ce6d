"""Tables as all answers have them, and those of ``plan``, ``apply`` and ``show``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.faces.render.rows import GpuLine, HolderLine, offer_lines
from partage.faces.wording import guarantee_words
from partage.model.share import Guarantee, NodeOffer
from partage.text import gpus

_GUARANTEE_STYLES = {
    Guarantee.HARD: "green",
    Guarantee.GUARDED: "cyan",
    Guarantee.ADVISORY: "yellow",
    Guarantee.NONE: "red",
}


def plain_table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """A table as all answers have it. right: columns of numbers."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for column in columns:
        # A name is copied out of the table, so it stays whole; sentences may be folded.
        table.add_column(
            column,
            justify="right" if column in right else "left",
            overflow="fold",
            no_wrap=column == "Resource",
        )
    return table


def report_lines(
    head: Iterable[str], tables: Iterable[Table], remarks: Iterable[str]
) -> Iterator[RenderableType]:
    """A report of an experiment: what was run, its tables, and what to know before relying on it."""
    yield from map(Text, head)
    for table in tables:
        yield Text()
        yield table
    yield Text()
    yield from (Text(f"! {remark}", style="yellow") for remark in remarks)


def resources_table(offer: NodeOffer) -> Table:
    """What is offered: one row per name, and one per way and size where a name has several."""
    table = plain_table(
        "What is offered", "Resource", "Count", "GPUs", "How", "Each share", "Memory", right=("Count",)
    )
    for line in offer_lines(offer):
        style = _GUARANTEE_STYLES[line.guarantee]
        table.add_row(
            line.name,
            str(line.count),
            line.gpus,
            line.sharing_text,
            line.share,
            Text(str(line.guarantee), style=style),
        )
    if not table.rows:
        table.add_row("nothing", "0")
    return table


def guarantees_used(offer: NodeOffer) -> Text:
    """What the words in the last column mean."""
    used = {offering.guarantee for offerings in offer.values() for offering in offerings}
    ordered = sorted(used, key=lambda guarantee: -guarantee.strength)
    return Text("\n".join(guarantee_words(guarantee) for guarantee in ordered), style="dim")


_INSTEAD = dict.fromkeys(("refused", "untouched", "rolled-back"), "as before") | {"partial": "uncertain"}
"""What is said in place of a layout that did not come about."""


def applied_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What ``apply`` did, or would do, GPU by GPU; those on which there was nothing to do are left out."""
    table = plain_table("GPUs", "GPU", "Outcome", "MIG devices", "Steps", right=("GPU",))
    rows = [row for row in rows if row["outcome"] != "unchanged"]
    for row in rows:
        layout = _INSTEAD.get(row["outcome"], ", ".join(row.get("layout", ())) or "-")
        steps = row.get("reason") or "\n".join(step["detail"] for step in row.get("steps", ()))
        bad = row["outcome"] in ("refused", "rolled-back", "partial")
        table.add_row(
            str(row["index"]),
            row["outcome"],
            layout,
            Text(steps),
            style="red" if bad else "",
        )
    if not rows:
        table.add_row("", "nothing to do", "", "")
    return table


def steps_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The steps in their order, equal ones of several GPUs in one row, and how far each reaches."""
    table = plain_table("What would change", "GPUs", "Step", "Must be idle meanwhile")
    for detail, changed, idle in _alike(rows):
        table.add_row(gpus(sorted(changed)), Text(detail), gpus(sorted(idle)) if idle else "")
    return table


def _alike(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, set[int], set[int]]]:
    """Equal steps together, never before a step that comes earlier on the same GPU."""
    found: list[tuple[str, set[int], set[int]]] = []
    for row in rows:
        changed, idle = set(row["gpus"]), set(row["idle"])
        for detail, earlier, idle_too in reversed(found):
            if detail == row["detail"]:
                earlier.update(changed)
                idle_too.update(idle)
                break
            if not earlier.isdisjoint(changed):
                found.append((row["detail"], changed, idle))
                break
        else:
            found.append((row["detail"], changed, idle))
    return found


def gpus_table(lines: Sequence[GpuLine]) -> Table:
    """The GPUs of a node."""
    table = plain_table(
        "GPUs", "GPU", "Product", "Memory", "MIG", "Mode", "NUMA", "Health", right=("GPU", "Memory")
    )
    for line in lines:
        style = "" if line.healthy else "red"
        table.add_row(
            line.index, line.product, line.memory, line.mig, line.mode, line.numa, line.health, style=style
        )
    return table


def holders_table(lines: Sequence[HolderLine]) -> Table:
    """Who holds what."""
    table = plain_table("Who holds shares", "GPU", "Resource", "Share", "Held by", "Known", right=("GPU",))
    for line in lines:
        table.add_row(line.gpu, line.resource, line.share, line.holder, line.certainty)
    return table

"""The answer of ``rightsize`` for people: a table, and sentences."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from partage.faces.documents.rightsize import RightsizeDocument
from partage.faces.render.tables import plain_table
from partage.text import count_of
from partage.units import format_bytes


def workloads_table(answer: RightsizeDocument) -> Table:
    """One row for each workload. With units of memory, their number takes the place of shares."""
    unit = answer.unit_bytes
    ways = ("Time-slicing", "MPS", "MIG") if unit is None else (f"Units of {format_bytes(unit)}",)
    table = plain_table("", "Workload", "Seen", "Peak", "Busy", "Now", "Needs", *ways, "Sure")
    for one in answer.workloads:
        seen = f"{count_of(one.runs, 'run')}, {one.hours:g} h"
        busy = "?" if one.sm_p95 is None else f"{one.sm_p95:.0%}"
        now = "?" if one.now_bytes is None else format_bytes(one.now_bytes)
        start = (Text(one.name), seen, format_bytes(one.peak_bytes), busy, now)
        if one.doubt is not None:
            table.add_row(*start, "?", *("" for _ in ways), "")
            continue
        mig = f"{one.mig} ({one.mig_instances})" if one.mig else "-"
        shares = (_split(one.time_slicing), _split(one.mps), mig)
        asked = shares if unit is None else (str(one.units or "whole GPU"),)
        table.add_row(*start, format_bytes(one.need_bytes or 0), *asked, one.confidence)
    return table


def _split(number: int | None) -> str:
    return f"1/{number}" if number and number > 1 else "whole GPU"


def remarks(answer: RightsizeDocument) -> Iterator[str]:
    """Why nothing is recommended, what to do then, and what is risky."""
    for one in answer.workloads:
        if one.doubt is not None:
            yield f"{one.name}: cannot tell: {one.reason}. What to do: {one.advice}"
        for risk in one.risks:
            yield f"{one.name}: {risk}"


def fleet_sentence(answer: RightsizeDocument) -> str:
    """What the workloads take together."""
    fleet = answer.fleet
    now = "not known" if fleet.gpus_now is None else count_of(fleet.gpus_now, "GPU")
    then = "not known" if fleet.gpus_then is None else count_of(fleet.gpus_then, "GPU")
    ran = count_of(fleet.containers, "container")
    return f"{ran} at the same time: {now} by their shares now, {then} by these needs."

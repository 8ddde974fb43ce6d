"""``simulate --trace`` for people: policies or placements side by side; what kept pods waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rich.table import Table

from partage.answers.render.tables import plain_table
from partage.answers.wording import shorten
from partage.text import count_of
from partage.whatif.decide.summary import FleetUse, PolicyResult, pods_of
from partage.whatif.document import PlacementsDocument, WhatIfDocument

_Cell = Callable[[PolicyResult], str]


def title_line(answer: WhatIfDocument, *, short: bool = False) -> str:
    """What is played on what. short: the trace without its folder, and not too long."""
    trace = shorten(Path(answer.trace).name, 40) if short else answer.trace
    nodes, gpus = _many(answer.fleet.nodes, "node"), _many(answer.fleet.gpus, "GPU")
    span = f", over {lasted(answer.span_s)}" if answer.span_s else ""
    return f"{pods_of(answer.pods)} of {trace} on {nodes} with {gpus}{span}"


def results_table(answer: WhatIfDocument) -> Table:
    """One column for each policy."""
    results = answer.policies
    names = [result.policy for result in results]
    table = plain_table("", "", *names, right=names)

    def add(words: str, cell: _Cell) -> None:
        table.add_row(words, *(cell(result) for result in results))

    add("pods that started at once", lambda result: f"{result.at_once:,}")
    add("pods that waited, then started", lambda result: f"{result.waited:,}")
    if any(result.waits for result in results):
        add("  how long: median", lambda result: lasted(result.waits.median_s) if result.waits else "-")
        add("  how long: 95 % of them", lambda result: lasted(result.waits.p95_s) if result.waits else "-")
        add("  how long: longest", lambda result: lasted(result.waits.longest_s) if result.waits else "-")
    add("pods that still wait at the end", lambda result: f"{result.still_waiting:,}")
    add("pods that fit on no node", lambda result: f"{result.never_fit:,}")
    add("pods that a node refused", lambda result: f"{result.refused.pods if result.refused else 0:,}")
    table.add_section()
    when = "mean" if results[0].gpus.over_time else "at the end"
    add("GPUs offered by the policy", lambda result: _gpus(result.gpus.offered, result.gpus.all))
    add(f"GPUs held by pods, {when}", lambda result: _gpus(result.gpus.held, result.gpus.all))
    add(f"  of which asked for, {when}", lambda result: _gpus(result.gpus.asked, result.gpus.all))
    add("GPUs held by pods, most", lambda result: _gpus(result.gpus.peak_held, result.gpus.all))
    add(f"GPUs free, {when}", lambda result: _gpus(result.gpus.free, result.gpus.all))
    add("  of which no waiting pod could use", lambda result: _part(result.gpus, result.gpus.blocked))
    add("  of which no pod of the trace could use", lambda result: _part(result.gpus, result.gpus.stranded))
    return table


def remarks(answer: WhatIfDocument) -> Iterator[str]:
    """What kept pods from running, and what to do next; under the name of the policy where there are more."""
    for policy in answer.policies:
        begin = f"{policy.policy}: " if len(answer.policies) > 1 else ""
        for never in policy.never:
            fits = "fits" if never.pods == 1 else "fit"
            yield f"{begin}{pods_of(never.pods)} {fits} on no node: {never.message}. Next: {never.hint}."
        if policy.refused is not None:
            yield f"{begin}{policy.refused.message}. Next: {policy.refused.hint}."
        if policy.still_waiting:
            free = f"{policy.gpus.free:.1f} GPUs are free" if not policy.gpus.over_time else ""
            where = f", and {free}" if free else ""
            wait = "waits" if policy.still_waiting == 1 else "wait"
            yield (
                f"{begin}{pods_of(policy.still_waiting)} still {wait} at the end{where}. Next: add nodes, "
                "or try a policy with other shares as a second --policy."
            )


def comparison_line(answer: WhatIfDocument) -> str:
    """Which policy runs most pods, and by how many; empty where there is one policy."""
    if len(answer.policies) < 2:
        return ""
    ranked = sorted(answer.policies, key=lambda result: -(result.at_once + result.waited))
    best, second = ranked[0], ranked[1]
    more = best.at_once + best.waited - second.at_once - second.waited
    if more:
        return f"{best.policy} runs {pods_of(more)} more than {second.policy}."
    sooner = max(answer.policies, key=lambda result: result.at_once)
    others = [policy for policy in answer.policies if policy is not sooner]
    gained = sooner.at_once - max(result.at_once for result in others)
    if gained:
        return f"All run equally many pods; {sooner.policy} starts {pods_of(gained)} more at once."
    return "All run equally many pods, and start equally many at once."


def _many(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}" + ("" if amount == 1 else "s")


def lasted(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.5 h``, ``12 days``."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f}".removesuffix(".0") + " s"


def _gpus(amount: float, all_gpus: float) -> str:
    part = amount / all_gpus if all_gpus else 0.0
    return f"{amount:,.1f}".removesuffix(".0") + f" ({part:.0%})"


def _part(use: FleetUse, amount: float) -> str:
    part = amount / use.free if use.free else 0.0
    return f"{amount:,.1f}".removesuffix(".0") + f" ({part:.0%} of free)"


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

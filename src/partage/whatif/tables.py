"""The answer of ``simulate --trace`` for people: policies side by side, and what kept pods from running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rich.table import Table

from partage.answers.render.tables import plain_table
from partage.answers.wording import shorten
from partage.whatif.decide.summary import FleetUse, PolicyResult
from partage.whatif.decide.texts import pods_of
from partage.whatif.document import WhatIfDocument

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
    names = [one.policy for one in results]
    table = plain_table("", "", *names, right=names)

    def add(words: str, cell: _Cell) -> None:
        table.add_row(words, *(cell(one) for one in results))

    add("pods that started at once", lambda one: f"{one.at_once:,}")
    add("pods that waited, then started", lambda one: f"{one.waited:,}")
    if any(one.waits for one in results):
        add("  how long: median", lambda one: lasted(one.waits.median_s) if one.waits else "-")
        add("  how long: 95 % of them", lambda one: lasted(one.waits.p95_s) if one.waits else "-")
        add("  how long: longest", lambda one: lasted(one.waits.longest_s) if one.waits else "-")
    add("pods that still wait at the end", lambda one: f"{one.still_waiting:,}")
    add("pods that fit on no node", lambda one: f"{one.never_fit:,}")
    add("pods that a node refused", lambda one: f"{one.refused.pods if one.refused else 0:,}")
    table.add_section()
    when = "mean" if results[0].gpus.over_time else "at the end"
    add("GPUs offered by the policy", lambda one: _gpus(one.gpus.offered, one.gpus.all))
    add(f"GPUs held by pods, {when}", lambda one: _gpus(one.gpus.held, one.gpus.all))
    add(f"  of which asked for, {when}", lambda one: _gpus(one.gpus.asked, one.gpus.all))
    add("GPUs held by pods, most", lambda one: _gpus(one.gpus.peak_held, one.gpus.all))
    add(f"GPUs free, {when}", lambda one: _gpus(one.gpus.free, one.gpus.all))
    add("  of which no waiting pod could use", lambda one: _part(one.gpus, one.gpus.blocked))
    add("  of which no pod of the trace could use", lambda one: _part(one.gpus, one.gpus.stranded))
    return table


def remarks(answer: WhatIfDocument) -> Iterator[str]:
    """What kept pods from running, and what to do next; under the name of the policy where there are more."""
    for one in answer.policies:
        begin = f"{one.policy}: " if len(answer.policies) > 1 else ""
        for never in one.never:
            fits = "fits" if never.pods == 1 else "fit"
            yield f"{begin}{pods_of(never.pods)} {fits} on no node: {never.message}. Next: {never.hint}."
        if one.refused is not None:
            yield f"{begin}{one.refused.message}. Next: {one.refused.hint}."
        if one.still_waiting:
            free = f"{one.gpus.free:.1f} GPUs are free" if not one.gpus.over_time else ""
            where = f", and {free}" if free else ""
            wait = "waits" if one.still_waiting == 1 else "wait"
            yield (
                f"{begin}{pods_of(one.still_waiting)} still {wait} at the end{where}. Next: add nodes, "
                "or try a policy with other shares as a second --policy."
            )


def comparison_line(answer: WhatIfDocument) -> str:
    """Which policy runs most pods, and by how many; empty where there is one policy."""
    if len(answer.policies) < 2:
        return ""
    ranked = sorted(answer.policies, key=lambda one: -(one.at_once + one.waited))
    best, second = ranked[0], ranked[1]
    more = best.at_once + best.waited - second.at_once - second.waited
    if more:
        return f"{best.policy} runs {pods_of(more)} more than {second.policy}."
    sooner = max(answer.policies, key=lambda one: one.at_once)
    others = [one for one in answer.policies if one is not sooner]
    gained = sooner.at_once - max(one.at_once for one in others)
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

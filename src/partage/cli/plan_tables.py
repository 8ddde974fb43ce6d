"""The tables of ``plan`` and ``apply``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from partage.answers.documents.plan import StepRow
from partage.answers.render.tables import plain_table
from partage.cli.apply_document import AppliedGpuRow, GpuOutcome
from partage.text import gpus

_INSTEAD = {
    GpuOutcome.REFUSED: "as before",
    GpuOutcome.UNTOUCHED: "as before",
    GpuOutcome.ROLLED_BACK: "as before",
    GpuOutcome.PARTIAL: "uncertain",
}
"""What is said in place of a layout that was not made."""
_BAD = (GpuOutcome.REFUSED, GpuOutcome.ROLLED_BACK, GpuOutcome.PARTIAL)


def applied_table(gpus: Sequence[AppliedGpuRow]) -> Table:
    """What ``apply`` did, or would do, GPU by GPU; GPUs on which there was nothing to do are left out.

    Steps that were done are counted: each was printed when it began.
    """
    table = plain_table("GPUs", "GPU", "Outcome", "MIG devices", "Steps", right=("GPU",))
    for gpu in gpus:
        if gpu.outcome is not GpuOutcome.UNCHANGED:
            layout = _INSTEAD.get(gpu.outcome, ", ".join(gpu.layout or ()) or "-")
            steps = Text(gpu.reason or _steps(gpu))
            style = "red" if gpu.outcome in _BAD else ""
            table.add_row(str(gpu.index), gpu.outcome, layout, steps, style=style)
    return table


def _steps(gpu: AppliedGpuRow) -> str:
    if gpu.outcome is GpuOutcome.DONE:
        return f"{len(gpu.steps)} done"
    return "\n".join(step.detail for step in gpu.steps)


def steps_table(rows: Sequence[StepRow]) -> Table:
    """The steps in their order, equal ones of several GPUs in one row, and how far each reaches."""
    table = plain_table("What would change", "GPUs", "Step", "Must be idle meanwhile")
    for detail, changed, idle in _alike(rows):
        table.add_row(gpus(sorted(changed)), Text(detail), gpus(sorted(idle)) if idle else "")
    return table


def _alike(rows: Sequence[StepRow]) -> list[tuple[str, set[int], set[int]]]:
    """Equal steps together, never before a step that comes earlier on the same GPU."""
    found: list[tuple[str, set[int], set[int]]] = []
    for row in rows:
        changed, idle = set(row.gpus), set(row.idle)
        for detail, earlier, idle_too in reversed(found):
            if detail == row.detail:
                earlier.update(changed)
                idle_too.update(idle)
                break
            if not earlier.isdisjoint(changed):
                found.append((row.detail, changed, idle))
                break
        else:
            found.append((row.detail, changed, idle))
    return found

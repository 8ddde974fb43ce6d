"""What ``partage apply`` did, GPU by GPU, as document and table; its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from partage.agent.reconciler.apply_once import ApplyResult
from partage.agent.reconciler.executor import NEEDS_REBOOT, TransactionEnd, TransactionOutcome
from partage.answers.documents.document import Document, GpuName, PolicySource
from partage.answers.documents.plan import HolderRow, StepRow, blocked_fields, layout_fields, step_rows
from partage.answers.documents.resources import ResourceRow
from partage.answers.render.tables import plain_table
from partage.answers.wording import lost_sentences
from partage.errors import GpuInUse, Problem, Unsatisfiable
from partage.model.gpu import Gpu
from partage.model.ids import GpuUuid
from partage.plan.reconcile.blocked import BlockKind
from partage.plan.reconcile.mig_plan import GpuMigPlan
from partage.plan.reconcile.node_plan import Phase
from partage.text import gpus as gpus_text


class GpuOutcome(StrEnum):
    """What became of a GPU.

    unchanged: there was nothing to do. planned: there is, and it is a dry run. refused: something blocks it.
    untouched: something blocks another GPU, so none is touched. done, rolled-back, partial, not-started,
    pending-reboot: as in ``TransactionEnd``.
    """

    UNCHANGED = "unchanged"
    PLANNED = "planned"
    REFUSED = "refused"
    UNTOUCHED = "untouched"
    DONE = "done"
    ROLLED_BACK = "rolled-back"
    PARTIAL = "partial"
    NOT_STARTED = "not-started"
    PENDING_REBOOT = "pending-reboot"


class AppliedGpuRow(GpuName, kw_only=True, omit_defaults=True):
    """One GPU.

    outcome: ``untouched``: something keeps all GPUs from being touched; ``partial``: neither as wanted nor as
    it was. reason: of a refusal or a failure. steps: those that were planned. layout, kept, destroyed: only
    with a MIG layout: what is there in the end, and which MIG devices stayed and went. refusal, holders: only
    where something blocks it. rollback_failure: what could not be undone.
    """

    outcome: GpuOutcome
    layout: tuple[str, ...] | None = None
    kept: tuple[str, ...] | None = None
    destroyed: tuple[str, ...] | None = None
    refusal: BlockKind | None = None
    holders: tuple[HolderRow, ...] | None = None
    reason: str | None
    steps: tuple[StepRow, ...]
    rollback_failure: str = ""


class ApplyDocument(Document, kw_only=True):
    """The answer of ``apply``. policy: None with ``--undo``. dry_run: nothing was done. resumed: what became
    of the run before, if it was cut off. gpus: one row for each GPU.
    """

    kind: Literal["Apply"] = "Apply"
    policy: PolicySource | None
    dry_run: bool
    resumed: str | None
    gpus: tuple[AppliedGpuRow, ...]
    resources: tuple[ResourceRow, ...]
    problems: tuple[Problem, ...]


def exit_code(applied: ApplyResult) -> int:
    """Of the worst thing that happened. A GPU in use is impossible here and now; nothing is broken."""
    codes = [Unsatisfiable.exit_code for _ in applied.refused]
    for outcome in applied.failed:
        busy = isinstance(outcome.error, GpuInUse) and outcome.ending is TransactionEnd.ROLLED_BACK
        codes.append(Unsatisfiable.exit_code if busy else outcome.error.exit_code if outcome.error else 4)
    return max(codes, default=0)


def problems(applied: ApplyResult) -> list[Problem]:
    """Errors, one sentence each; GPUs that do not answer, of which nothing is compared, are warnings."""
    refused = applied.refused
    said = [_named(gpu, refused[gpu.uuid]) for gpu in applied.first.inventory if gpu.uuid in refused]
    for outcome in applied.failed:
        ending = f"; {_ending(outcome)}"
        gpus = outcome.transaction.gpus
        where = gpus_text(gpu.index for gpu in applied.first.inventory if gpu.uuid in gpus)
        alone = f"; {outcome.left_alone_words}" if outcome.left_alone else ""
        said.append(f"{where}: {outcome.failed}: {outcome.error}{ending}{alone}")
    lost = [Problem("", "", "warning", text) for text in lost_sentences(applied.now.inventory)]
    return [*(Problem("", "", "error", text) for text in said), *lost]


def _ending(outcome: TransactionOutcome) -> str:
    if outcome.ending is TransactionEnd.PENDING_REBOOT:
        return NEEDS_REBOOT
    if outcome.rollback_failure:
        return f"NOT ROLLED BACK: {outcome.rollback_failure}"
    return "all of it was rolled back"


def _named(gpu: Gpu, reason: str) -> str:
    return reason if reason.startswith("GPU ") else f"GPU {gpu.index}: {reason}"


def applied_gpu_rows(applied: ApplyResult) -> tuple[AppliedGpuRow, ...]:
    """One row for every GPU."""
    return tuple(_gpu_row(gpu, applied) for gpu in applied.first.inventory if gpu.uuid in applied.plan.gpus)


def _gpu_row(gpu: Gpu, applied: ApplyResult) -> AppliedGpuRow:
    uuid, inventory = gpu.uuid, applied.first.inventory
    own = [outcome for outcome in applied.outcomes if uuid in outcome.transaction.gpus]
    planned = applied.plan.gpus[uuid]
    failed = next((outcome for outcome in applied.failed if uuid in outcome.transaction.gpus), None)
    return AppliedGpuRow(
        index=gpu.index,
        uuid=uuid,
        outcome=_outcome(uuid, applied, own, failed),
        reason=str(failed.error) if failed else applied.refused.get(uuid),
        steps=step_rows(planned.steps, inventory),
        rollback_failure=failed.rollback_failure if failed else "",
        **_layout_fields(uuid, applied),
        **blocked_fields(applied.last.gpus[uuid].blocked or planned.blocked, inventory),
    )


def _layout_fields(uuid: GpuUuid, applied: ApplyResult) -> dict[str, Any]:
    """Of the last plan in which its layout changed."""
    found = [plan.mig.of(uuid) for plan in applied.plans]
    changed = [gpu_plan for gpu_plan in found if isinstance(gpu_plan, GpuMigPlan) and gpu_plan.steps]
    return layout_fields(changed[-1] if changed else found[0])


def _outcome(
    uuid: GpuUuid, applied: ApplyResult, own: Sequence[TransactionOutcome], failed: TransactionOutcome | None
) -> GpuOutcome:
    if uuid in applied.refused:
        return GpuOutcome.REFUSED
    if failed is not None:
        return GpuOutcome(failed.ending.value)
    if own:
        return GpuOutcome.DONE
    if applied.plan.gpus[uuid].phase is Phase.SETTLED:
        return GpuOutcome.UNCHANGED
    return GpuOutcome.PLANNED if applied.dry_run else GpuOutcome.UNTOUCHED


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

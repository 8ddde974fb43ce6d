"""What ``partage apply`` did, GPU by GPU, and its exit code."""

from __future__ import annotations

from typing import Any

from partage.agent.reconciler.apply_once import ApplyResult
from partage.agent.reconciler.executor import TransactionEnd, TransactionOutcome
from partage.errors import GpuInUse, Problem, Unsatisfiable
from partage.faces.plan_rows import blocked_keys, mig_keys, step_row
from partage.model.gpu import Gpu
from partage.model.ids import GpuUuid
from partage.plan.reconcile.gpu_mig_plan import GpuMigPlan
from partage.plan.reconcile.node_plan import Phase
from partage.text import gpus as name_gpus


def exit_code(applied: ApplyResult) -> int:
    """Of the worst thing that happened. A GPU in use is impossible here and now; nothing is broken."""
    codes = [Unsatisfiable.exit_code for _ in applied.refused]
    for outcome in applied.failed:
        busy = isinstance(outcome.error, GpuInUse) and outcome.ending is TransactionEnd.ROLLED_BACK
        codes.append(Unsatisfiable.exit_code if busy else outcome.error.exit_code if outcome.error else 4)
    return max(codes, default=0)


def problems(applied: ApplyResult) -> list[Problem]:
    """Errors, one sentence each."""
    refused = applied.refused
    said = [_named(gpu, refused[gpu.uuid]) for gpu in applied.first.inventory if gpu.uuid in refused]
    for outcome in applied.failed:
        ending = (
            f"; NOT ROLLED BACK: {outcome.rollback_failure}"
            if outcome.rollback_failure
            else "; all of it was rolled back"
        )
        gpus = outcome.transaction.gpus
        where = name_gpus(gpu.index for gpu in applied.first.inventory if gpu.uuid in gpus)
        said.append(f"{where}: {outcome.failed}: {outcome.error}{ending}")
    return [Problem("", "", "error", text) for text in said]


def _named(gpu: Gpu, reason: str) -> str:
    return reason if reason.startswith("GPU ") else f"GPU {gpu.index}: {reason}"


def rows(applied: ApplyResult) -> list[dict[str, Any]]:
    """One row for every GPU."""
    return [_row(gpu, applied) for gpu in applied.first.inventory if gpu.uuid in applied.plan.gpus]


def _row(gpu: Gpu, applied: ApplyResult) -> dict[str, Any]:
    uuid, inventory = gpu.uuid, applied.first.inventory
    own = [one for one in applied.outcomes if uuid in one.transaction.gpus]
    planned = applied.plan.gpus[uuid]
    failed = next((one for one in applied.failed if uuid in one.transaction.gpus), None)
    row: dict[str, Any] = {"index": gpu.index, "uuid": uuid, "outcome": _outcome(uuid, applied, own, failed)}
    row |= _mig_keys(uuid, applied)
    row |= blocked_keys(applied.last.gpus[uuid].blocked or planned.blocked, inventory)
    row["reason"] = str(failed.error) if failed else applied.refused.get(uuid)
    row["steps"] = [step_row(step, inventory) for step in planned.steps]
    if failed is not None and failed.rollback_failure:
        row["rollbackFailure"] = failed.rollback_failure
    return row


def _mig_keys(uuid: GpuUuid, applied: ApplyResult) -> dict[str, Any]:
    """Of the last plan in which its layout changed."""
    found = [plan.mig.of(uuid) for plan in applied.plans]
    changed = [one for one in found if isinstance(one, GpuMigPlan) and one.steps]
    return mig_keys(changed[-1] if changed else found[0])


def _outcome(
    uuid: GpuUuid, applied: ApplyResult, own: list[TransactionOutcome], failed: TransactionOutcome | None
) -> str:
    """What became of one GPU. untouched: another one's refusal keeps all as they are."""
    if uuid in applied.refused:
        return "refused"
    if failed is not None:
        return str(failed.ending)
    if own:
        return "done"
    if applied.plan.gpus[uuid].phase is Phase.SETTLED:
        return "unchanged"
    return "planned" if applied.dry_run else "untouched"

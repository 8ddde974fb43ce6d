"""What was, or would be, done under MIG, as documents: steps, their reach, who is in the way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from partage.faces.documents import step_rows
from partage.model.gpu import Inventory
from partage.model.step import GpuUse, Step, Verify, blast, gpus_of
from partage.plan.reconcile.blocked import Blocked, Blocker
from partage.plan.reconcile.changes import Act, Change
from partage.plan.reconcile.gpu_mig_plan import GpuMigPlan
from partage.plan.reconcile.mig_plan import MigPlan


def act(step: Step) -> str:
    """``create-instance``: what kind of step it is."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(step).__name__).lower()


def step_row(step: Step, inventory: Inventory) -> dict[str, Any]:
    """One step. idle: indexes of GPUs that nobody may use meanwhile, and that lose every instance."""
    reach = blast(step)
    return {
        "act": act(step),
        "gpus": _indexes(gpus_of(step), inventory),
        "detail": str(step),
        "idle": _indexes(reach.idle, inventory),
        "reboot": reach.reboot,
    }


def planned_keys(planned: GpuMigPlan, inventory: Inventory) -> dict[str, Any]:
    """The way of one GPU: its steps, what it will have, which MIG devices live on and which do not."""
    return {
        "layout": list(planned.layout),
        "kept": list(planned.kept),
        "destroyed": list(planned.gone),
        "steps": [step_row(step, inventory) for step in planned.steps],
    }


def refused_keys(refused: Blocked, inventory: Inventory) -> dict[str, Any]:
    """Why a GPU has no way, and who would have to go."""
    return {
        "refusal": str(refused.kind),
        "reason": refused.reason,
        "holders": holder_rows([refused], inventory),
    }


def holder_rows(refused: Iterable[Blocked], inventory: Inventory) -> list[dict[str, Any]]:
    """Everybody who is in the way, each once for each thing that he holds."""
    blockers = dict.fromkeys(blocker for one in refused for blocker in one.blockers)
    rows = [_holder_row(use, blocker, inventory) for blocker in blockers for use in blocker.users]
    return [row for number, row in enumerate(rows) if row not in rows[:number]]


def _holder_row(use: GpuUse, blocker: Blocker, inventory: Inventory) -> dict[str, Any]:
    devices = [use.device] if use.device else list(blocker.devices)
    return {
        "kind": str(use.kind),
        "name": use.name,
        "pid": use.pid,
        "gpu": next(iter(_indexes([use.gpu], inventory)), None),
        "uuid": use.gpu,
        "devices": devices,
        "profile": blocker.profile,
        "why": blocker.why,
    }


def change_rows(changes: Sequence[Change], plan: MigPlan, inventory: Inventory) -> list[dict[str, Any]]:
    """What has to be done to a node, GPU by GPU; changes under MIG say their steps, or who is in the way."""
    ways = by_gpu(plan)
    return [
        {**row, **(way_keys(ways.get(row["uuid"]), inventory) if row["act"] == Act.MIG_LAYOUT else {})}
        for row in step_rows(_with_quiet_ones(changes, plan, inventory))
    ]


def way_keys(way: GpuMigPlan | Blocked | None, inventory: Inventory) -> dict[str, Any]:
    """What is said of one GPU's way, or of why it has none. None: nobody wants anything of it."""
    if isinstance(way, Blocked):
        return refused_keys(way, inventory)
    return {} if way is None else planned_keys(way, inventory)


def _with_quiet_ones(changes: Sequence[Change], plan: MigPlan, inventory: Inventory) -> list[Change]:
    """Changes that no MIG device shows are in it, too: an empty GPU instance, a pending mode."""
    said = {change.gpu.uuid for change in changes if change.act is Act.MIG_LAYOUT}
    moved = {one.gpu for one in plan.planned if one.steps} | {one.gpu for one in plan.refused}
    quiet = [
        Change(gpu, Act.MIG_LAYOUT, "its MIG devices are or come to be as wanted, and it has to be changed")
        for gpu in inventory
        if gpu.uuid in moved - said
    ]
    return sorted([*changes, *quiet], key=lambda change: (change.gpu.index, change.act != Act.MIG_LAYOUT))


def unit_rows(plan: MigPlan, inventory: Inventory) -> list[dict[str, Any]]:
    """All steps of a node, in their order, but for those that only look."""
    return [
        step_row(step, inventory)
        for unit in plan.units
        for step in unit.steps
        if not isinstance(step, Verify)
    ]


def by_gpu(plan: MigPlan) -> dict[str, GpuMigPlan | Blocked]:
    """The way of every GPU, or why it has none, by UUID."""
    ways: dict[str, GpuMigPlan | Blocked] = {one.gpu: one for one in plan.planned}
    return ways | {one.gpu: one for one in plan.refused}


def _indexes(uuids: Sequence[str], inventory: Inventory) -> list[int]:
    return sorted(gpu.index for gpu in inventory if gpu.uuid in uuids)

"""A node's plan as documents: phases, steps and their reach, what is in the way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.step import GpuUse, PlannedStep, StartDaemonAt, Verify, blast_radius, gpus_of
from partage.plan.reconcile.blocked import Blocked, Blocker
from partage.plan.reconcile.gpu_mig_plan import GpuMigPlan
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan
from partage.plan.serve.ledger import LedgerEntry


def step_kind(step: PlannedStep) -> str:
    """``create-instance``: what kind of step it is."""
    name = "StartDaemon" if isinstance(step, StartDaemonAt) else type(step).__name__
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def step_row(step: PlannedStep, inventory: Inventory) -> dict[str, Any]:
    """One step. idle: indexes of GPUs that must not be used meanwhile, and that lose every instance."""
    reach = blast_radius(step)
    return {
        "act": step_kind(step),
        "gpus": _indexes(gpus_of(step), inventory),
        "detail": str(step),
        "idle": _indexes(reach.idle, inventory),
        "reboot": reach.reboot,
    }


def all_steps(plan: NodePlan) -> list[PlannedStep]:
    """The steps of a node in their order: those of now, then those that can be planned in full only later."""
    steps: list[PlannedStep] = [step for one in plan.transactions for step in one.steps]
    known = set(steps)
    for gpu in plan.gpus.values():
        steps += [step for step in gpu.steps if step not in known]
    return steps


def step_rows(plan: NodePlan, inventory: Inventory) -> list[dict[str, Any]]:
    """The same as rows."""
    return [step_row(step, inventory) for step in all_steps(plan)]


def changing_steps(plan: NodePlan, inventory: Inventory) -> list[dict[str, Any]]:
    """The same, without those that only look."""
    return [step_row(step, inventory) for step in all_steps(plan) if not isinstance(step, Verify)]


def gpu_rows(plan: NodePlan, inventory: Inventory) -> list[dict[str, Any]]:
    """Every GPU: its phase, why it is not settled, its steps."""
    return [
        {"index": gpu.index, "uuid": gpu.uuid, **gpu_keys(gpu.uuid, plan.gpus[gpu.uuid], plan, inventory)}
        for gpu in inventory
        if gpu.uuid in plan.gpus
    ]


def gpu_keys(uuid: GpuUuid, gpu: GpuPlan, plan: NodePlan, inventory: Inventory) -> dict[str, Any]:
    """What is said of one GPU's plan."""
    return {
        "phase": str(gpu.phase),
        "reason": gpu.reason or None,
        **mig_keys(plan.mig.of(uuid)),
        **blocked_keys(gpu.blocked, inventory),
        "waitingFor": [held_row(entry) for entry in gpu.waiting_for],
        "steps": [step_row(step, inventory) for step in gpu.steps],
    }


def held_row(entry: LedgerEntry) -> dict[str, Any]:
    """One held share, and which containers hold it."""
    holders = [f"{one.namespace}/{one.pod}/{one.container}" for one in entry.holders]
    return {"resource": entry.resource, "id": entry.id, "certainty": str(entry.certainty), "holders": holders}


def mig_keys(mig: GpuMigPlan | Blocked | None) -> dict[str, Any]:
    """The layout that a GPU will have, and which MIG devices stay and which do not."""
    if not isinstance(mig, GpuMigPlan):
        return {}
    return {"layout": list(mig.layout), "kept": list(mig.kept), "destroyed": list(mig.gone)}


def blocked_keys(blocked: Blocked | None, inventory: Inventory) -> dict[str, Any]:
    """What is in the way of a GPU's steps."""
    if blocked is None:
        return {}
    return {"refusal": str(blocked.kind), "holders": holder_rows([blocked], inventory)}


def blocked_of(plan: NodePlan) -> list[Blocked]:
    """Everything that is in the way on a node."""
    return [gpu.blocked for gpu in plan.gpus.values() if gpu.blocked is not None]


def holder_rows(blocked: Iterable[Blocked], inventory: Inventory) -> list[dict[str, Any]]:
    """Pods, processes and monitors that are in the way, each once for each thing that it holds."""
    blockers = dict.fromkeys(blocker for one in blocked for blocker in one.blockers)
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


def _indexes(uuids: Sequence[GpuUuid], inventory: Inventory) -> list[int]:
    return sorted(gpu.index for gpu in inventory if gpu.uuid in uuids)

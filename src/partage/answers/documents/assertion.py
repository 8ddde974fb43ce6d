"""How a node differs from a policy, GPU by GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from partage.agent.observers.once import PlanInput
from partage.answers.documents.document import Document
from partage.answers.documents.plan import StepRow, step_rows
from partage.errors import Problem
from partage.model.gpu import Gpu
from partage.model.ids import GpuUuid
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.settings import NO_SETTINGS, GpuSettings
from partage.plan.reconcile.blocked import Blocked
from partage.plan.reconcile.mig_plan import GpuMigPlan, live_layout
from partage.plan.reconcile.node_plan import NodePlan
from partage.text import gpus as gpus_text
from partage.values import Frozen


class LayoutRow(Frozen):
    """mig: MIG mode is on. layout: the MIG devices, ``3g.40gb@4``."""

    mig: bool
    layout: tuple[str, ...]


class DifferenceRow(Frozen, kw_only=True, omit_defaults=True):
    """One GPU that is not as the policy wants it. uuid: None of a lost GPU if it can no longer be read.
    wanted, found: only where its MIG layout differs.
    """

    index: int
    uuid: GpuUuid | None
    wanted: LayoutRow | None = None
    found: LayoutRow | None = None
    detail: str
    steps: tuple[StepRow, ...]


class ComparedRow(Frozen):
    """For what the policy has wishes, and on which GPUs (indexes)."""

    mig_layouts: tuple[int, ...]
    mps_daemons: tuple[int, ...]
    compute_modes: tuple[int, ...]
    time_slices: tuple[int, ...]


class AssertionDocument(Document, kw_only=True):
    """The answer of ``assert``. compared: also where all is as wanted. problems: warnings of the policy."""

    kind: Literal["Assertion"] = "Assertion"
    as_wanted: bool
    compared: ComparedRow
    differences: tuple[DifferenceRow, ...]
    problems: tuple[Problem, ...]


def compared_row(desired: DesiredState) -> ComparedRow:
    """What of the node is compared with the policy."""
    gpus = list(desired.inventory)

    def those(wanted: Callable[[GpuSettings], object]) -> tuple[int, ...]:
        return tuple(gpu.index for gpu in gpus if wanted(desired.settings.get(gpu.uuid, NO_SETTINGS)))

    return ComparedRow(
        mig_layouts=tuple(gpu.index for gpu in gpus if gpu.uuid in desired.layouts),
        mps_daemons=those(lambda settings: settings.daemons),
        compute_modes=those(lambda settings: settings.exclusive_process),
        time_slices=those(lambda settings: settings.interval),
    )


def compared_sentence(desired: DesiredState) -> str:
    """``as wanted: GPUs 0-3; MIG layout of GPU 2, MPS daemon of GPU 0``, where nothing differs."""
    row = compared_row(desired)
    parts = {
        "MIG layout": row.mig_layouts,
        "MPS daemon": row.mps_daemons,
        "compute mode": row.compute_modes,
        "time slice": row.time_slices,
    }
    wanted = [f"{what} of {gpus_text(indexes)}" for what, indexes in parts.items() if indexes]
    all_gpus = gpus_text(gpu.index for gpu in desired.inventory)
    if not wanted:
        return f"as wanted: {all_gpus}; the policy needs no {', '.join(parts)}, and none is left from before"
    return f"as wanted: {all_gpus}; compared: {', '.join(wanted)}"


def difference_rows(found: PlanInput, plan: NodePlan) -> tuple[DifferenceRow, ...]:
    """One row for each GPU that is not settled, then one for each that does not answer."""
    unsettled = (_row(gpu, found, plan) for gpu in found.inventory if gpu.uuid in plan.unsettled)
    lost = (
        DifferenceRow(index=gpu.index, uuid=gpu.uuid, detail=f"it is lost: {gpu.reason}", steps=())
        for gpu in found.inventory.lost
    )
    return (*unsettled, *lost)


def _row(gpu: Gpu, found: PlanInput, plan: NodePlan) -> DifferenceRow:
    own = plan.gpus[gpu.uuid]
    wanted = _wanted_layout(gpu, found, plan)
    live = None if wanted is None else _live_layout(gpu)
    return DifferenceRow(
        index=gpu.index,
        uuid=gpu.uuid,
        wanted=wanted,
        found=live,
        detail=_difference(gpu, wanted, live) if wanted and live else own.reason,
        steps=step_rows(own.steps, found.inventory),
    )


def _wanted_layout(gpu: Gpu, found: PlanInput, plan: NodePlan) -> LayoutRow | None:
    """The MIG layout that it should have; None if it has it, or none is wanted."""
    desired, mig = found.desired.layouts.get(gpu.uuid), plan.mig.of(gpu.uuid)
    if desired is None or mig is None or (isinstance(mig, GpuMigPlan) and not mig.steps):
        return None
    return LayoutRow(desired.enabled, _names(desired.items) if isinstance(mig, Blocked) else mig.layout)


def _live_layout(gpu: Gpu) -> LayoutRow:
    live = live_layout(gpu)
    return LayoutRow(live.enabled, _names(live.items))


def _names(items: Sequence[object]) -> tuple[str, ...]:
    return tuple(map(str, items))


def _difference(gpu: Gpu, wanted: LayoutRow, live: LayoutRow) -> str:
    assert gpu.mig_mode is not None
    if gpu.mig_mode.current != wanted.mig:
        mode, now = ("on", "off") if wanted.mig else ("off", "on")
        pending = ", until it is reset" if gpu.mig_mode.pending == wanted.mig else ""
        return f"MIG mode is wanted {mode}, and is {now}{pending}"
    if gpu.mig_mode.pending != wanted.mig:
        return f"MIG mode will be {'off' if wanted.mig else 'on'} after the next reset"
    if wanted == live:
        return "a GPU instance without a MIG device takes up its slices"
    return f"wanted {', '.join(wanted.layout) or 'no MIG device'}; found {', '.join(live.layout) or 'none'}"

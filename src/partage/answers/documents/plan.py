"""A node's plan: phases, steps and their reach, what blocks them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from partage.answers.documents.document import Document, GpuName, row
from partage.answers.documents.resources import HeldShare
from partage.answers.wording import who_holds
from partage.model.gpu import Gpu, Inventory
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import GpuUuid, MigUuid
from partage.model.step import PlannedStep, StartDaemonAt, blast_radius, gpus_of
from partage.plan.reconcile.blocked import Blocked, Blocker, BlockKind
from partage.plan.reconcile.mig_plan import GpuMigPlan
from partage.plan.reconcile.node_plan import NodePlan, Phase
from partage.plan.serve.ledger_entry import LedgerEntry
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.answers.documents.report import EntryRow


class StepRow(Frozen):
    """One step.

    act: ``set-mig-mode``, ``reset``, ``destroy-compute``, ``destroy-instance``, ``create-instance``,
    ``create-compute``, ``verify``, ``set-compute-mode``, ``set-time-slice``, ``start-daemon``,
    ``stop-daemon``. gpus: indexes of the GPUs that it changes. detail: a sentence. idle: indexes of GPUs that
    must not be used meanwhile, and that lose every instance. reboot: needed; None: in a virtual machine,
    perhaps.
    """

    act: str
    gpus: tuple[int, ...]
    detail: str
    idle: tuple[int, ...]
    reboot: bool | None


class HolderRow(Frozen):
    """A pod, process or monitor that blocks a change. gpu: None for a GPU that does not answer.

    devices: the MIG devices that it uses; none: the GPU as a whole. profile: of the instance that blocks.
    why: why it blocks the change, a sentence.
    """

    kind: UseKind
    name: str
    pid: int | None
    gpu: int | None
    uuid: GpuUuid
    devices: tuple[MigUuid, ...]
    profile: str | None
    why: str


class HeldRow(HeldShare, kw_only=True):
    """One held share. holders: ``namespace/pod/container``; several: ambiguous."""

    holders: tuple[str, ...]


class PlannedGpuRow(GpuName, kw_only=True, omit_defaults=True):
    """The plan of one GPU. reason: why it is not settled, a sentence. steps: those that remain, in order; a
    step of several GPUs stands with each of them. waiting_for: held shares that its change waits for.

    layout: what will be there, ``3g.40gb@4``; only with a MIG layout. kept, destroyed: UUIDs of MIG devices,
    only with a MIG layout. refusal, holders: only where something blocks it.
    """

    phase: Phase
    reason: str | None
    layout: tuple[str, ...] | None = None
    kept: tuple[str, ...] | None = None
    destroyed: tuple[str, ...] | None = None
    refusal: BlockKind | None = None
    holders: tuple[HolderRow, ...] | None = None
    waiting_for: tuple[HeldRow, ...]
    steps: tuple[StepRow, ...]


class HoldersDocument(Document, kw_only=True):
    """What the command of ``apply --drain`` reads."""

    kind: Literal["Holders"] = "Holders"
    holders: tuple[HolderRow, ...]


def planned_gpu_rows(plan: NodePlan, inventory: Inventory) -> tuple[PlannedGpuRow, ...]:
    """Every GPU of the plan."""
    return tuple(_gpu_row(gpu, plan, inventory) for gpu in inventory if gpu.uuid in plan.gpus)


def _gpu_row(gpu: Gpu, plan: NodePlan, inventory: Inventory) -> PlannedGpuRow:
    own = plan.gpus[gpu.uuid]
    return PlannedGpuRow(
        index=gpu.index,
        uuid=gpu.uuid,
        phase=own.phase,
        reason=own.reason or None,
        waiting_for=tuple(held_row(entry) for entry in own.waiting_for),
        steps=step_rows(own.steps, inventory),
        **layout_fields(plan.mig.of(gpu.uuid)),
        **blocked_fields(own.blocked, inventory),
    )


def held_row(entry: LedgerEntry | EntryRow) -> HeldRow:
    """The row of one held share."""
    return row(HeldRow, entry, holders=who_holds(entry.holders, entry.claim))


def layout_fields(mig: GpuMigPlan | Blocked | None) -> dict[str, Any]:
    """The layout that a GPU will have, and which MIG devices stay and which do not."""
    if not isinstance(mig, GpuMigPlan):
        return {}
    return {"layout": mig.layout, "kept": mig.kept, "destroyed": mig.gone}


def blocked_fields(blocked: Blocked | None, inventory: Inventory) -> dict[str, Any]:
    """What blocks a GPU's steps."""
    if blocked is None:
        return {}
    return {"refusal": blocked.kind, "holders": holder_rows([blocked], inventory)}


# --- steps -----------------------------------------------------------------------------------------


def all_steps(plan: NodePlan) -> list[PlannedStep]:
    """The steps of a node in their order: those of now, then those that can be planned in full only later."""
    steps: list[PlannedStep] = [step for transaction in plan.transactions for step in transaction.steps]
    known = set(steps)
    for gpu in plan.gpus.values():
        steps += [step for step in gpu.steps if step not in known]
    return steps


def step_rows(steps: Iterable[PlannedStep], inventory: Inventory) -> tuple[StepRow, ...]:
    """The rows of these steps."""
    return tuple(_step_row(step, inventory) for step in steps)


def _step_row(step: PlannedStep, inventory: Inventory) -> StepRow:
    reach = blast_radius(step)
    return StepRow(
        act="start-daemon" if isinstance(step, StartDaemonAt) else str(step.__struct_config__.tag),
        gpus=_indexes(gpus_of(step), inventory),
        detail=str(step),
        idle=_indexes(reach.idle, inventory),
        reboot=reach.reboot,
    )


# --- what is in the way ------------------------------------------------------------------------------


def blocked_of(plan: NodePlan) -> list[Blocked]:
    """Everything that blocks changes on a node."""
    return [gpu.blocked for gpu in plan.gpus.values() if gpu.blocked is not None]


def holder_rows(blocked: Iterable[Blocked], inventory: Inventory) -> tuple[HolderRow, ...]:
    """Pods, processes and monitors that block changes, each once for each thing that it holds."""
    blockers = [blocker for gpu_blocked in blocked for blocker in gpu_blocked.blockers]
    rows = (_holder_row(use, blocker, inventory) for blocker in blockers for use in blocker.users)
    return tuple(dict.fromkeys(rows))


def _holder_row(use: GpuUse, blocker: Blocker, inventory: Inventory) -> HolderRow:
    return row(
        HolderRow,
        use,
        gpu=next(iter(_indexes([use.gpu], inventory)), None),
        uuid=use.gpu,
        devices=(use.device,) if use.device else blocker.devices,
        profile=blocker.profile,
        why=blocker.why,
    )


def _indexes(uuids: Sequence[GpuUuid], inventory: Inventory) -> tuple[int, ...]:
    return tuple(sorted(gpu.index for gpu in inventory if gpu.uuid in uuids))

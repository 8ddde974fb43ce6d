"""The MIG steps of a node: each GPU by itself, except GPUs that share a reset.

Only GPUs with a pending change of MIG mode are reset, and those that the hardware resets with them. All of
these must be idle. They lose their instances, so each needs a desired layout for afterwards; a GPU without
one is included only if it has no instances.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from partage.model.geometry import Geometry
from partage.model.gpu import Gpu, Inventory
from partage.model.gpu_use import GpuUse
from partage.model.ids import GpuUuid
from partage.model.policy import DesiredMig
from partage.model.step import Transaction, gpus_of
from partage.plan.reconcile.blocked import Blocked, BlockKind, blocked_by_users, reset_blockers
from partage.plan.reconcile.gpu_mig_plan import GpuMigPlan, GpuMigSteps, gpu_mig_steps, ordered_steps
from partage.plan.reconcile.resets import reset_sets
from partage.values import Frozen

NOTHING: Mapping[GpuUuid, Collection[int]] = {}


class MigPlan(Frozen):
    """The MIG steps of a node.

    transactions: by lowest GPU index. planned: one entry for each GPU whose layout can be made, without
    steps if it matches. blocked: one entry for each other GPU; other GPUs do not wait for it.
    """

    transactions: tuple[Transaction, ...] = ()
    planned: tuple[GpuMigPlan, ...] = ()
    blocked: tuple[Blocked, ...] = ()

    def of(self, gpu: GpuUuid) -> GpuMigPlan | Blocked | None:
        """The result for one GPU; None: the policy asks for no layout there."""
        found: tuple[GpuMigPlan | Blocked, ...] = (*self.planned, *self.blocked)
        return next((plan for plan in found if plan.gpu == gpu), None)


def plan_mig(
    inventory: Inventory,
    layouts: Mapping[GpuUuid, DesiredMig],
    geometry_of: Callable[[Gpu], Geometry | None],
    uses: Iterable[GpuUse] = (),
    *,
    renew: Mapping[GpuUuid, Collection[int]] = NOTHING,
) -> MigPlan:
    """The steps from the live layouts to ``layouts`` (by GPU UUID); GPUs without one are not changed.

    uses: of all GPUs. renew: as in ``gpu_mig_steps``, by GPU UUID.
    """
    node = _MigNode(inventory, layouts, geometry_of, tuple(uses), renew)
    separate = {gpu.uuid: node.work(gpu) for gpu in inventory if gpu.uuid in layouts}
    sets = reset_sets(inventory)
    outcome = dict(separate)
    together: dict[GpuUuid, tuple[GpuUuid, ...]] = {}
    for group in dict.fromkeys(sets[uuid] for uuid, work in separate.items() if _is_reset(work)):
        reset_with_others = node.reset_with_others(group, separate)
        outcome |= reset_with_others
        if all(isinstance(work, GpuMigSteps) for work in reset_with_others.values()):
            together |= dict.fromkeys(group, group)
    # Without virtualisation only the driver can refuse a reset.
    return _plan(outcome, together, reboot=False if inventory.virtual is False else None)


class _MigNode(Frozen):
    """The arguments of ``plan_mig``."""

    inventory: Inventory
    layouts: Mapping[GpuUuid, DesiredMig]
    geometry_of: Callable[[Gpu], Geometry | None]
    uses: tuple[GpuUse, ...]
    renew: Mapping[GpuUuid, Collection[int]]

    def work(self, gpu: Gpu, *, reset_with_others: bool = False) -> GpuMigSteps | Blocked:
        return gpu_mig_steps(
            gpu,
            self.layouts[gpu.uuid],
            self.geometry_of(gpu),
            self.uses,
            renew=self.renew.get(gpu.uuid, ()),
            reset_with_others=reset_with_others,
        )

    def reset_with_others(
        self, group: Sequence[GpuUuid], separate: Mapping[GpuUuid, GpuMigSteps | Blocked]
    ) -> Mapping[GpuUuid, GpuMigSteps] | Mapping[GpuUuid, Blocked]:
        """The results of GPUs that share a reset: steps for all, or refusals for those that need the
        reset."""
        members = [gpu for gpu in self.inventory if gpu.uuid in group]
        pending = [gpu for gpu in members if _is_reset(separate.get(gpu.uuid))]
        if blockers := reset_blockers(members, self.uses):
            return {gpu.uuid: blocked_by_users(gpu, "cannot be reset", blockers) for gpu in pending}
        works: dict[GpuUuid, GpuMigSteps] = {}
        for gpu in members:
            work = self.work(gpu, reset_with_others=True) if gpu.uuid in self.layouts else None
            if isinstance(work, GpuMigSteps):
                works[gpu.uuid] = work
            elif loss := _loss(gpu, work):
                return {waiting.uuid: _shared(waiting, gpu, loss) for waiting in pending}
        return works


def _plan(
    outcome: Mapping[GpuUuid, GpuMigSteps | Blocked],
    together: Mapping[GpuUuid, tuple[GpuUuid, ...]],
    *,
    reboot: bool | None,
) -> MigPlan:
    refused = tuple(work for work in outcome.values() if isinstance(work, Blocked))
    works = {uuid: work for uuid, work in outcome.items() if isinstance(work, GpuMigSteps)}
    groups = dict.fromkeys(together.get(uuid, (uuid,)) for uuid in works)
    transactions, planned = [], []
    for group in groups:
        members = [works[uuid] for uuid in group if uuid in works]
        steps = ordered_steps(members, group, reboot)
        transactions += [Transaction(group, steps)] if steps else []
        planned += [
            work.planned([step for step in steps if work.gpu.uuid in gpus_of(step)]) for work in members
        ]
    return MigPlan(tuple(transactions), tuple(planned), refused)


def _is_reset(work: GpuMigSteps | Blocked | None) -> bool:
    return isinstance(work, GpuMigSteps) and work.reset


def _loss(gpu: Gpu, refused: Blocked | None) -> str:
    """What a GPU without steps would lose by a reset, as a sentence; empty: nothing."""
    why = "no layout is desired for it afterwards" if refused is None else refused.reason
    if gpu.mig_devices or gpu.empty_instances:
        return f"its instances would be lost, and {why}"
    if gpu.mig_mode is not None and gpu.mig_mode.current != gpu.mig_mode.pending:
        return f"its MIG mode would change, and {why}"
    return ""


def _shared(gpu: Gpu, other: Gpu, loss: str) -> Blocked:
    reason = f"GPU {gpu.index} cannot be reset without GPU {other.index}: {loss}"
    return Blocked(gpu.uuid, BlockKind.SHARED, reason)

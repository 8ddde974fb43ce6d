"""Carry a plan out once, on a node without an agent (``partage apply``)."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.observers.once import OtherPluginOn, PlanInput, Resolve, observe_input
from partage.agent.reconciler.executor import (
    Executor,
    Progress,
    TransactionEnd,
    TransactionOutcome,
    layouts_before,
)
from partage.agent.reconciler.reconciler import makes_layout
from partage.edges.files.journal import Journal, JournalHeader, Unfinished
from partage.edges.hardware.port import Hardware
from partage.edges.kubelet.port import PodResources
from partage.errors import GpuInUse
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.policy import ALL_EXCLUSIVE, DesiredMig
from partage.model.step import Transaction
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.instances import to_renew
from partage.plan.reconcile.node_plan import FailedAttempt, NodePlan, Phase
from partage.plan.reconcile.planner import plan_node
from partage.plan.reconcile.settings_steps import OriginalSettings, note_originals
from partage.values import Frozen

_MOST_ROUNDS = 8
"""Plans that are carried out one after the other: layout, daemons, time slices, a second attempt."""


def desired_for_undo(inventory: Inventory, layouts: Mapping[GpuUuid, DesiredMig]) -> DesiredState:
    """The desired state that restores MIG layouts and changes nothing else (``apply --undo``)."""
    return DesiredState(ALL_EXCLUSIVE, inventory, offer={}, layouts=layouts)


class AskHolders(Protocol):
    """Asks holders to end."""

    async def __call__(self, plan: NodePlan, inventory: Inventory, left_s: float) -> None:
        """Ask them once; return when to observe again, after left_s at the latest."""
        ...


class ApplyResult(Frozen):
    """The result of ``apply``.

    first: the node as it was found; now: as it was seen last. plans: the plan then, and those after each
    round; the last one says what is left. outcomes: in the order in which they were carried out.
    """

    first: PlanInput
    plans: tuple[NodePlan, ...]
    now: PlanInput
    outcomes: tuple[TransactionOutcome, ...] = ()
    dry_run: bool = False

    @property
    def plan(self) -> NodePlan:
        """The first plan."""
        return self.plans[0]

    @property
    def last(self) -> NodePlan:
        """The last plan; the first one for a dry run."""
        return self.plans[-1]

    @property
    def refused(self) -> dict[GpuUuid, str]:
        """GPUs that could not be changed because something blocks them, and the reason, by UUID.

        From the last plan only those that were rolled back, or whose time slice cannot be set.
        """
        rolled_back = {
            gpu
            for outcome in self.outcomes
            if outcome.ending is TransactionEnd.ROLLED_BACK
            for gpu in outcome.transaction.gpus
        }
        at_last = [gpu for gpu in blocked_gpus(self.last) if gpu in rolled_back] + gpus_with_fixed_slices(
            self.last
        )
        found = {gpu: self.plan.gpus[gpu].reason for gpu in blocked_gpus(self.plan)}
        return found | {gpu: self.last.gpus[gpu].reason for gpu in at_last}

    @property
    def failed(self) -> tuple[TransactionOutcome, ...]:
        """Transactions that failed, and were not done at a second attempt."""
        last = {outcome.transaction.gpus: outcome for outcome in self.outcomes}
        refused = self.refused.keys()
        return tuple(one for gpus, one in last.items() if one.error is not None and refused.isdisjoint(gpus))


class ApplyRun(Struct):
    """One run of ``partage apply``.

    journal: None where nothing outlives this process. original_in: how GPUs were set before Partage changed
    them, by boot id; save: writes it to disk. drain: None: holders are not asked to end. timeout_s: how long
    they may take. only_layouts: settings are not changed. other_plugin: see ``OtherPluginOn``.
    """

    hardware: Hardware
    resolve: Resolve
    geometry_of: GeometryOf
    progress: Callable[[Inventory], Progress]
    pod_resources: PodResources | None = None
    journal: Journal | None = None
    unfinished: Unfinished | None = None
    digest: str = ""
    original_in: Callable[[str], Mapping[GpuUuid, OriginalSettings]] = lambda _: {}
    save: Callable[[Mapping[GpuUuid, OriginalSettings]], Awaitable[None]] | None = None
    drain: AskHolders | None = None
    timeout_s: float = 0.0
    dry_run: bool = False
    only_layouts: bool = False
    other_plugin: OtherPluginOn = lambda _: ""
    clock: Callable[[], float] = time.monotonic
    _attempts: dict[GpuUuid, FailedAttempt] = field(default_factory=dict)
    _before: dict[GpuUuid, DesiredMig] = field(default_factory=dict)
    _original: Mapping[GpuUuid, OriginalSettings] | None = None

    async def run(self) -> ApplyResult:
        """Apply, or report what blocks it. Raises what makes the policy wrong or impossible."""
        until = self.clock() + self.timeout_s
        while True:
            first = await self._observe()
            plan = self._plan(first)
            applied = ApplyResult(first, (plan,), first, dry_run=self.dry_run)
            if self.dry_run:
                return applied
            if not blocked_gpus(plan):
                applied = await self._carry_out(applied)
            left_s = until - self.clock()
            if self.drain is None or left_s <= 0 or not _may_pass(applied):
                return applied
            await self.drain(plan, first.inventory, left_s)

    async def _observe(self) -> PlanInput:
        found = await observe_input(
            self.hardware,
            self.resolve,
            self.pod_resources,
            self._original_in,
            attempts=dict(self._attempts),
            other_plugin=self.other_plugin,
        )
        if not self.only_layouts:
            return found
        observed = replace(found.now.observed, daemons=())
        return PlanInput(found.desired, replace(found.now, observed=observed, original={}))

    def _original_in(self, boot_id: str) -> Mapping[GpuUuid, OriginalSettings]:
        """What was saved, and after the first step what this run has noted besides."""
        if self._original is None:
            self._original = self.original_in(boot_id)
        return self._original

    def _plan(self, found: PlanInput) -> NodePlan:
        return plan_node(found.desired, found.now, self.geometry_of)

    async def _carry_out(self, applied: ApplyResult) -> ApplyResult:
        """Plan and carry out until nothing is left that can be done."""
        outcomes: list[TransactionOutcome] = []
        plans, found = list(applied.plans), applied.first
        for _ in range(_MOST_ROUNDS):
            if not (batch := _next_batch(plans[-1].ready)):
                break
            done = await self._execute(batch, found.inventory)
            await self._note(done)
            outcomes += done
            found = await self._observe()
            plans.append(self._plan(found))
        if not outcomes and self.unfinished is not None and self.journal is not None:
            self.journal.conclude()
        return replace(applied, plans=tuple(plans), now=found, outcomes=tuple(outcomes))

    async def _execute(
        self, batch: Sequence[Transaction], inventory: Inventory
    ) -> tuple[TransactionOutcome, ...]:
        """One after the other. One journal for all layouts, so that ``--undo`` restores all of them."""
        steps = (step for transaction in batch for step in transaction.steps)
        self._original = note_originals(steps, self._original or {})
        if self.save is not None:
            await self.save(self._original)
        journal = self.journal if makes_layout(batch[0]) else None
        self._before = {**layouts_before(inventory, batch), **self._before}
        if self.unfinished is not None:
            # Undo restores the layouts from before the interrupted run, not its intermediate state.
            self._before |= self.unfinished.header.before
        before = self._before if makes_layout(batch[0]) else {}
        header = JournalHeader(inventory.boot_id, self.digest, before, back=self.only_layouts)
        executor = Executor(self.hardware, journal, self.geometry_of, self.progress(inventory))
        return await executor.execute(batch, header, inventory)

    async def _note(self, outcomes: Sequence[TransactionOutcome]) -> None:
        """What failed is not retried, except if a GPU instance had no room: once, with a new instance."""
        for outcome in outcomes:
            if outcome.error is None:
                continue
            renew = {}
            if outcome.failed is not None and outcome.ending is TransactionEnd.ROLLED_BACK:
                renew = to_renew(await self.hardware.observe(), outcome.failed, outcome.error)
            for gpu in outcome.transaction.gpus:
                again = bool(renew) and gpu not in self._attempts
                instances = renew.get(gpu, frozenset())
                again_s = 0.0 if again else math.inf
                self._attempts[gpu] = FailedAttempt(outcome.reason, 1, again_s, instances)


def _next_batch(ready: Sequence[Transaction]) -> tuple[Transaction, ...]:
    """All layouts, else all settings."""
    layouts = tuple(transaction for transaction in ready if makes_layout(transaction))
    return layouts or tuple(ready)


def blocked_gpus(plan: NodePlan) -> list[GpuUuid]:
    """UUIDs of GPUs that block the whole run."""
    stuck = (Phase.WAITING, Phase.BLOCKED, Phase.UNKNOWN)
    unset = gpus_with_fixed_slices(plan)
    return [gpu for gpu, one in plan.gpus.items() if one.phase in stuck and gpu not in unset]


def gpus_with_fixed_slices(plan: NodePlan) -> list[GpuUuid]:
    """UUIDs of GPUs with a time slice that the driver does not change; nothing else has to wait for that."""
    return [gpu for gpu, one in plan.gpus.items() if one.phase is Phase.BLOCKED and one.blocked is None]


def _may_pass(applied: ApplyResult) -> bool:
    """Whether only holders and processes block it, which may end."""
    phases = {applied.last.gpus[gpu].phase for gpu in blocked_gpus(applied.last)}
    if Phase.BLOCKED in phases:
        return False
    busy = [
        isinstance(failure.error, GpuInUse) and failure.ending is TransactionEnd.ROLLED_BACK
        for failure in applied.failed
    ]
    return Phase.WAITING in phases or (bool(busy) and all(busy))

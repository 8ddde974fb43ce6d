"""One look at a node without an agent, and ``partage apply``: carry a plan out once."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.observers.settings import without_daemons
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
from partage.model.gpu import Inventory, NoDriver
from partage.model.policy import ALL_EXCLUSIVE, DesiredMig
from partage.model.step import GpuUse, Transaction
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.attempts import FailedAttempt
from partage.plan.reconcile.known_node import recognise
from partage.plan.reconcile.live_instances import to_renew
from partage.plan.reconcile.node_plan import NodePlan, Observed, Phase, Snapshot
from partage.plan.reconcile.planner import plan_node
from partage.plan.reconcile.pod_uses import entry_uses
from partage.plan.reconcile.settings_steps import OriginalSettings, needed_originals, note_originals
from partage.plan.serve.ledger import Ledger, LedgerEntry
from partage.values import Frozen

Resolve = Callable[[Inventory], DesiredState]
"""What is wanted of a node. Raises InputError, Unsatisfiable, DriverUnavailable."""

_NO_ATTEMPTS: Mapping[str, FailedAttempt] = {}
_MOST_ROUNDS = 8
"""Plans that are carried out one after the other: layout, daemons, time slices, a second attempt."""


class PlanInput(Frozen):
    """A node at one moment, and what is wanted of it."""

    desired: DesiredState
    now: Snapshot

    @property
    def inventory(self) -> Inventory:
        """The node as it was observed."""
        return self.now.observed.node.inventory


async def look(
    hardware: Hardware,
    resolve: Resolve,
    pod_resources: PodResources | None = None,
    original: Mapping[str, OriginalSettings] | None = None,
    attempts: Mapping[str, FailedAttempt] = _NO_ATTEMPTS,
) -> PlanInput:
    """Observe a node on which no agent runs.

    pod_resources: None: nothing is known of pods. Raises HardwareError, what ``resolve`` raises, and
    Unreachable where the kubelet does not answer.
    """
    inventory = await hardware.observe()
    desired = resolve(inventory)
    original = original or {}
    daemons = await hardware.daemons()
    intervals = [one.interval for one in desired.settings.values()]
    intervals += [one.interval for one in original.values()]
    slices = await hardware.time_slices() if any(intervals) else ()
    observed = Observed(
        node=recognise(None, inventory),
        daemons=daemons,
        slices={one.gpu: one.interval for one in slices if one.interval is not None},
        fixed_slices={one.gpu: one.reason for one in slices if one.interval is None},
        uses=without_daemons(await hardware.uses(), daemons),
    )
    entries = () if pod_resources is None else await _entries(pod_resources)
    modes = {gpu.uuid: gpu.compute_mode for gpu in inventory}
    needed = needed_originals(original, desired.settings, modes, observed.slices)
    now = Snapshot(time.monotonic(), observed, entries=entries, original=needed, attempts=attempts)
    return PlanInput(desired, now)


async def _entries(pod_resources: PodResources) -> tuple[LedgerEntry, ...]:
    """Who holds what, of all device plugins: without an agent, shares may be another plugin's."""
    ledger = Ledger()
    ledger.observed(await pod_resources.held(), 0.0)
    return ledger.entries()


class NodeAccess(Frozen):
    """A node, and who can be asked about its users. pod_resources: None: nothing is known of pods."""

    hardware: Hardware
    pod_resources: PodResources | None = None

    async def look(self) -> tuple[Inventory, tuple[GpuUse, ...]]:
        """What is there, and what uses it. Raises HardwareError, Unreachable."""
        inventory = await self.hardware.observe()
        if isinstance(inventory.driver, NoDriver):
            return inventory, ()
        uses = await self.hardware.uses()
        entries = () if self.pod_resources is None else await _entries(self.pod_resources)
        return inventory, (*uses, *entry_uses(entries, inventory))


def desired_for_undo(inventory: Inventory, layouts: Mapping[str, DesiredMig]) -> DesiredState:
    """The desired state that brings MIG layouts back and touches nothing else (``apply --undo``)."""
    return DesiredState(ALL_EXCLUSIVE, inventory, offer={}, layouts=layouts)


class Drain(Protocol):
    """Makes holders go."""

    async def __call__(self, plan: NodePlan, inventory: Inventory, left_s: float) -> None:
        """Ask them once; return when it may be worth another look, after left_s at the latest."""
        ...


class ApplyResult(Frozen):
    """What became of it.

    first: the node as it was found. plans: the plan then, and those after each round; the last one says what
    is left. outcomes: in the order in which they were carried out.
    """

    first: PlanInput
    plans: tuple[NodePlan, ...]
    outcomes: tuple[TransactionOutcome, ...] = ()
    dry_run: bool = False

    @property
    def plan(self) -> NodePlan:
        """The plan for the node as it was found."""
        return self.plans[0]

    @property
    def last(self) -> NodePlan:
        """The plan when it ended; the same for a dry run."""
        return self.plans[-1]

    @property
    def refused(self) -> dict[str, str]:
        """GPUs that could not be changed because something is in the way, and what it is, by UUID.

        At the end only those that are as they were: a second attempt may find something in its way.
        """
        rolled_back = {
            gpu for one in self.outcomes if one.ending is TransactionEnd.BACK for gpu in one.transaction.gpus
        }
        found = {gpu: self.plan.gpus[gpu].reason for gpu in in_the_way(self.plan)}
        return found | {
            gpu: self.last.gpus[gpu].reason for gpu in in_the_way(self.last) if gpu in rolled_back
        }

    @property
    def failed(self) -> tuple[TransactionOutcome, ...]:
        """Transactions that failed, and were not done at a second attempt."""
        last = {one.transaction.gpus: one for one in self.outcomes}
        refused = self.refused.keys()
        return tuple(one for gpus, one in last.items() if one.error is not None and refused.isdisjoint(gpus))


class ApplyRun(Struct):
    """One run of ``partage apply``.

    journal: None where nothing outlives this process. original: how GPUs were set before Partage changed
    them; save: has it on disk. drain: None: holders are not asked to go. timeout_s: how long they may take.
    only_layouts: settings are left alone.
    """

    hardware: Hardware
    resolve: Resolve
    geometry_of: GeometryOf
    progress: Callable[[Inventory], Progress]
    pod_resources: PodResources | None = None
    journal: Journal | None = None
    unfinished: Unfinished | None = None
    digest: str = ""
    original: Mapping[str, OriginalSettings] = field(default_factory=dict)
    save: Callable[[Mapping[str, OriginalSettings]], Awaitable[None]] | None = None
    drain: Drain | None = None
    timeout_s: float = 0.0
    dry_run: bool = False
    only_layouts: bool = False
    clock: Callable[[], float] = time.monotonic
    _attempts: dict[str, FailedAttempt] = field(default_factory=dict)
    _before: dict[str, DesiredMig] = field(default_factory=dict)

    async def run(self) -> ApplyResult:
        """Do it, or say what is in the way. Raises whatever makes the policy wrong or impossible."""
        until = self.clock() + self.timeout_s
        while True:
            first = await self._look()
            plan = self._plan(first)
            applied = ApplyResult(first, (plan,), dry_run=self.dry_run)
            if self.dry_run:
                return applied
            if not in_the_way(plan):
                applied = await self._carry_out(applied)
            left_s = until - self.clock()
            if self.drain is None or left_s <= 0 or not _may_pass(applied):
                return applied
            await self.drain(plan, first.inventory, left_s)

    async def _look(self) -> PlanInput:
        found = await look(
            self.hardware, self.resolve, self.pod_resources, self.original, dict(self._attempts)
        )
        if not self.only_layouts:
            return found
        observed = replace(found.now.observed, daemons=())
        return PlanInput(found.desired, replace(found.now, observed=observed, original={}))

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
            found = await self._look()
            plans.append(self._plan(found))
        if not outcomes and self.unfinished is not None and self.journal is not None:
            self.journal.conclude()
        return replace(applied, plans=tuple(plans), outcomes=tuple(outcomes))

    async def _execute(
        self, batch: Sequence[Transaction], inventory: Inventory
    ) -> tuple[TransactionOutcome, ...]:
        """One after the other. One journal for all layouts, so that ``--undo`` takes all of them back."""
        self.original = note_originals((step for one in batch for step in one.steps), self.original)
        if self.save is not None:
            await self.save(self.original)
        journal = self.journal if makes_layout(batch[0]) else None
        self._before = {**layouts_before(inventory, batch), **self._before}
        if self.unfinished is not None:
            # The way back is what was there before the run that was cut off, not its half-done work.
            self._before |= self.unfinished.header.before
        before = self._before if makes_layout(batch[0]) else {}
        header = JournalHeader(inventory.boot_id, self.digest, before, back=self.only_layouts)
        executor = Executor(self.hardware, journal, self.geometry_of, self.progress(inventory))
        return await executor.execute(batch, header)

    async def _note(self, outcomes: Sequence[TransactionOutcome]) -> None:
        """What failed is not tried again, save where a GPU instance had no room: once, with a new one."""
        for outcome in outcomes:
            if outcome.error is None:
                continue
            renew = {}
            if outcome.failed is not None and outcome.ending is TransactionEnd.BACK:
                renew = to_renew(await self.hardware.observe(), outcome.failed, outcome.error)
            for gpu in outcome.transaction.gpus:
                again = bool(renew) and gpu not in self._attempts
                instances = renew.get(gpu, frozenset())
                again_s = 0.0 if again else math.inf
                self._attempts[gpu] = FailedAttempt(outcome.reason, 1, again_s, instances)


def _next_batch(ready: Sequence[Transaction]) -> tuple[Transaction, ...]:
    """All layouts, else all settings."""
    layouts = tuple(one for one in ready if makes_layout(one))
    return layouts or tuple(ready)


def in_the_way(plan: NodePlan) -> list[str]:
    """UUIDs of GPUs that keep ``apply`` from touching any GPU."""
    stuck = (Phase.WAITING, Phase.BLOCKED, Phase.UNKNOWN)
    return [gpu for gpu, one in plan.gpus.items() if one.phase in stuck]


def _may_pass(applied: ApplyResult) -> bool:
    """Whether what is in the way can go away by itself, and nothing else is wrong."""
    phases = {one.phase for one in applied.last.gpus.values()}
    if Phase.BLOCKED in phases:
        return False
    busy = [isinstance(one.error, GpuInUse) and one.ending is TransactionEnd.BACK for one in applied.failed]
    return Phase.WAITING in phases or (bool(busy) and all(busy))

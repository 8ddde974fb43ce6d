"""``partage apply``, without its options: look, plan, refuse or drain, execute, say what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from partage.agent.executor import Executor, StepStatus, TransactionEnd, TransactionOutcome, before
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.journal import Journal, JournalHeader, Unfinished
from partage.edges.hardware.port import Hardware
from partage.edges.kubelet.port import PodResources
from partage.errors import GpuInUse, Problem, Unsatisfiable
from partage.faces.moves import by_gpu, holder_rows, way_keys
from partage.model.gpu import Inventory, NoDriver
from partage.model.policy import DesiredMig, Policy
from partage.model.step import GpuUse, Step, gpus_of
from partage.plan.offer.assign import assign
from partage.plan.offer.findings import name_gpus
from partage.plan.reconcile.blocked import Blocked, BlockKind
from partage.plan.reconcile.gpu_mig_plan import GpuMigPlan
from partage.plan.reconcile.holders import pod_uses, wishes_of
from partage.plan.reconcile.live_instances import to_renew
from partage.plan.reconcile.mig_plan import MigPlan, node_steps


@dataclass(frozen=True, slots=True)
class Goal:
    """What the node shall become: a policy, or what lived there before. digest: of the policy's text."""

    policy: Policy | None = None
    digest: str = ""
    back: Mapping[str, DesiredMig] | None = None

    def wishes(self, inventory: Inventory) -> tuple[Mapping[str, DesiredMig], tuple[Problem, ...]]:
        """What every GPU shall have, and what there is to say. Raises InputError, Unsatisfiable."""
        if self.back is not None or self.policy is None:
            return self.back or {}, ()
        warnings = assign(self.policy, inventory, geometry_of).warnings
        return wishes_of(self.policy, inventory, geometry_of), warnings


class Drain(Protocol):
    """Makes holders go."""

    async def __call__(self, holders: Sequence[Mapping[str, Any]], left_s: float) -> None:
        """Ask them once; return when it may be worth to look again, after left_s at the latest."""
        ...


@dataclass(frozen=True, slots=True)
class Node:
    """What is changed, and whom is asked. pod_resources: None: nobody knows of pods."""

    hardware: Hardware
    pod_resources: PodResources | None = None

    async def look(self) -> tuple[Inventory, tuple[GpuUse, ...]]:
        """What is there and who uses it. Raises Unreachable where the kubelet should say and does not."""
        inventory = await self.hardware.observe()
        if isinstance(inventory.driver, NoDriver):
            return inventory, ()
        uses = await self.hardware.uses()
        held = () if self.pod_resources is None else await self.pod_resources.held()
        return inventory, (*uses, *pod_uses(held, inventory))


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of it. inventory: as it was found; outcomes: empty for a dry run."""

    inventory: Inventory
    plan: MigPlan
    outcomes: tuple[TransactionOutcome, ...] = ()
    warnings: tuple[Problem, ...] = ()
    dry_run: bool = False

    @property
    def failed(self) -> tuple[TransactionOutcome, ...]:
        """Units that did not come to their end."""
        return tuple(outcome for outcome in self.outcomes if outcome.ending is not TransactionEnd.DONE)

    @property
    def exit_code(self) -> int:
        """Of the worst thing that happened. In use is impossible here and now, and nothing is broken."""
        codes = [Unsatisfiable.exit_code for _ in self.plan.refused]
        for outcome in self.failed:
            busy = isinstance(outcome.error, GpuInUse) and outcome.ending is TransactionEnd.BACK
            codes.append(Unsatisfiable.exit_code if busy else outcome.error.exit_code if outcome.error else 4)
        return max(codes, default=0)

    def problems(self) -> list[Problem]:
        """Errors, one sentence each."""
        said = [refused.reason for refused in self.plan.refused]
        for outcome in self.failed:
            ending = f"; NOT TAKEN BACK: {outcome.torn}" if outcome.torn else "; all of it was taken back"
            where = name_gpus(gpu.index for gpu in self.inventory if gpu.uuid in outcome.unit.gpus)
            said.append(f"{where}: {outcome.failed}: {outcome.error}{ending}")
        return [Problem("", "", "error", text) for text in said]

    def rows(self) -> list[dict[str, Any]]:
        """One row for every GPU that somebody wants something of."""
        ways = by_gpu(self.plan)
        return [self._row(gpu.index, gpu.uuid, ways[gpu.uuid]) for gpu in self.inventory if gpu.uuid in ways]

    def _row(self, index: int, uuid: str, way: GpuMigPlan | Blocked) -> dict[str, Any]:
        outcome = next((one for one in self.outcomes if uuid in one.unit.gpus), None)
        row = {"index": index, "uuid": uuid, "outcome": self._word(way, outcome)}
        row |= way_keys(way, self.inventory)
        if outcome is not None and outcome.error is not None:
            row["reason"] = str(outcome.error)
        if outcome is not None and outcome.torn:
            row["torn"] = outcome.torn
        return row

    def _word(self, way: GpuMigPlan | Blocked, outcome: TransactionOutcome | None) -> str:
        """What became of one GPU. untouched: another one's refusal keeps all as they are."""
        if isinstance(way, Blocked):
            return "refused"
        if not way.steps:
            return "unchanged"
        if outcome is not None:
            return str(outcome.ending)
        return "planned" if self.dry_run else "untouched"


@dataclass(slots=True)
class Applying:
    """One run.

    journal: None where nothing outlives us. tell: hears of every step. timeout_s: how long holders may take
    to go. check: raises for an inventory that cannot be used.
    """

    node: Node
    goal: Goal
    journal: Journal | None
    unfinished: Unfinished | None
    tell: Callable[[str], None]
    drain: Drain | None = None
    timeout_s: float = 0.0
    dry_run: bool = False
    clock: Callable[[], float] = time.monotonic
    check: Callable[[Inventory], Inventory] = lambda inventory: inventory

    async def run(self) -> Applied:
        """Do it, or say why not. Raises whatever makes the policy wrong or impossible."""
        until = self.clock() + self.timeout_s
        while True:
            inventory, uses = await self.node.look()
            wishes, warnings = self.goal.wishes(self.check(inventory))
            plan = node_steps(inventory, wishes, geometry_of, uses)
            applied = Applied(inventory, plan, (), warnings, self.dry_run)
            if self.dry_run:
                return applied
            if not plan.refused:
                applied = Applied(inventory, plan, await self._execute(inventory, plan), warnings)
                applied = await self._anew(applied, wishes)
            left_s = until - self.clock()
            if self.drain is None or left_s <= 0 or not _passes(applied):
                return applied
            await self.drain(holder_rows(plan.refused, inventory), left_s)

    async def _anew(self, applied: Applied, wishes: Mapping[str, DesiredMig]) -> Applied:
        """Once more for GPUs on which a GPU instance had no room for a compute instance: with a new one."""
        tight = [
            one for one in applied.failed if one.ending is TransactionEnd.BACK and one.failed and one.error
        ]
        if not tight:
            return applied
        inventory, uses = await self.node.look()
        renew: dict[str, Collection[int]] = {}
        for outcome in tight:
            if outcome.failed and outcome.error:
                renew |= to_renew(inventory, outcome.failed, outcome.error)
        again = [one for one in tight if renew.keys() & set(one.unit.gpus)]
        if not again:
            return applied
        some = {gpu: wishes[gpu] for one in again for gpu in one.unit.gpus if gpu in wishes}
        plan = node_steps(inventory, some, geometry_of, uses, renew=renew)
        outcomes = tuple(one for one in applied.outcomes if one not in again)
        if not plan.refused:
            outcomes += await self._execute(inventory, plan)
        return replace(applied, plan=_replanned(applied.plan, plan), outcomes=outcomes)

    async def _execute(self, inventory: Inventory, plan: MigPlan) -> tuple[TransactionOutcome, ...]:
        was = before(inventory, plan.units)
        if self.unfinished is not None:
            # What lived before the run that was cut off is the way back, not its half-done work.
            was = {**was, **self.unfinished.beginning.before}
        if not plan.units and self.unfinished is None:
            return ()
        beginning = JournalHeader(inventory.boot_id, self.goal.digest, was, self.goal.back is not None)

        def progress(step: Step, phase: StepStatus, reason: str) -> None:
            if phase is not StepStatus.DONE:
                self.tell(_progress(inventory, step, phase, reason))

        executor = Executor(self.node.hardware, self.journal, geometry_of, progress)
        return await executor.execute(plan.units, beginning)


def _progress(inventory: Inventory, step: Step, phase: StepStatus, reason: str) -> str:
    """``GPU 3: taking back: destroy the GPU instance 3g.40gb at 4:4``."""
    where = name_gpus(gpu.index for gpu in inventory if gpu.uuid in gpus_of(step))
    said = "" if phase is StepStatus.DOING else f"{phase}: "
    return f"{where}: {said}{step}{f': {reason}' if reason else ''}"


def _replanned(first: MigPlan, second: MigPlan) -> MigPlan:
    """The first plan, with the second in place of what it says of the same GPUs."""
    anew = {one.gpu for one in second.planned} | {one.gpu for one in second.refused}
    return MigPlan(
        (*(unit for unit in first.units if anew.isdisjoint(unit.gpus)), *second.units),
        (*(one for one in first.planned if one.gpu not in anew), *second.planned),
        second.refused,
    )


def _passes(applied: Applied) -> bool:
    """Whether what is in the way can go away by itself, and nothing else is wrong."""
    if any(one.kind not in (BlockKind.HELD, BlockKind.SHARED) for one in applied.plan.refused):
        return False
    if any(one.kind is BlockKind.HELD for one in applied.plan.refused):
        return True
    busy = [isinstance(one.error, GpuInUse) and one.ending is TransactionEnd.BACK for one in applied.failed]
    return bool(busy) and all(busy)

"""Rolls back one transaction that failed: step by step, then by difference, once.

It destroys what the steps said that they made, or what was there before them, and nothing else
(``plan.reconcile.rollback``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from msgspec import Struct

from partage.edges.hardware.port import Hardware
from partage.errors import HardwareError, StateMismatch
from partage.model.gpu import Inventory, NoDriver
from partage.model.ids import GpuUuid
from partage.model.policy import DesiredMig
from partage.model.step import Created, Reset, SetMigMode, Step, undo
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.live_instances import to_renew
from partage.plan.reconcile.mig_plan import plan_mig
from partage.plan.reconcile.rollback import (
    ForeignPart,
    foreign_parts,
    hit_by,
    is_as_it_was,
    layouts_beside,
    perhaps_ours,
)


class Rollback(Struct):
    """The rollback of one transaction.

    perform: does one step. before: the node for which the transaction was planned. was: the layouts to go
    back to, by GPU UUID. done: the steps so far, and what each made; those of the rollback are added.
    foreign: what was found that is not of the transaction.
    """

    hardware: Hardware
    perform: Callable[[Step], Awaitable[Created | None]]
    geometry_of: GeometryOf
    before: Inventory
    was: Mapping[GpuUuid, DesiredMig]
    done: list[tuple[Step, Created | None]]
    foreign: tuple[ForeignPart, ...] = ()

    async def run(self, failed: Step, error: HardwareError) -> str:
        """Roll back. failed: the step that failed, error: why. Returns what could not be rolled back, a
        sentence; empty: all was.
        """
        try:
            steps = undo(self.done)
            if any(isinstance(step, SetMigMode | Reset) for step in steps):
                await self._look()  # these can hit all instances of a GPU
            stuck = await self._back(steps)
            now = await self._look()
            if self._differing(now):
                # The step that failed was done all the same, or one of its predecessors could not be undone.
                stuck = await self._by_difference(now, stuck) or stuck
                now = await self._look()
        except HardwareError as problem:
            return str(problem)
        if ours := perhaps_ours(failed, error, self.foreign):
            return (
                f"{ours} may have been made by the step that failed; it was left alone, as that is not known"
            )
        differing = self._differing(now)
        return f"{differing}: {stuck[1]}" if differing and stuck else differing

    async def _by_difference(
        self, now: Inventory, stuck: tuple[Step, HardwareError] | None
    ) -> tuple[Step, HardwareError] | None:
        """Plan the way back from what is there now. Returns a step that failed, and why."""
        renew = to_renew(now, *stuck) if stuck else {}
        uses = await self.hardware.uses()
        plan = plan_mig(now, layouts_beside(self.was, self.foreign), self.geometry_of, uses, renew=renew)
        if plan.blocked:
            raise StateMismatch("; ".join(block.reason for block in plan.blocked))
        return await self._back(step for transaction in plan.transactions for step in transaction.steps)

    async def _back(self, steps: Iterable[Step]) -> tuple[Step, HardwareError] | None:
        """Do the steps until one fails; returns that one, and why."""
        for step in steps:
            try:
                if part := hit_by(step, self.foreign):
                    raise StateMismatch(f"cannot {step}: {part} is not known to be made by this change")
                self.done.append((step, await self.perform(step)))
            except HardwareError as error:
                return step, error
        return None

    async def _look(self) -> Inventory:
        now = await self.hardware.observe()
        self.foreign = tuple(
            part for part in foreign_parts(now, self.before, self.done) if part.gpu in self.was
        )
        return now

    def _differing(self, inventory: Inventory) -> str:
        """Which GPUs differ from their old layout, a sentence; empty: none."""
        if isinstance(inventory.driver, NoDriver):
            return inventory.driver.reason
        lost = {gpu.uuid: gpu for gpu in inventory.lost}
        said = []
        for uuid, layout in layouts_beside(self.was, self.foreign).items():
            gpu = inventory.gpu(uuid)
            if gpu is None:
                said.append(f"GPU {lost[uuid].index} is lost" if uuid in lost else f"{uuid} does not answer")
            elif not is_as_it_was(gpu, layout, self.foreign):
                said.append(f"GPU {gpu.index} is not as it was")
        return "; ".join(said)

"""Carries out transactions: each step is journalled before it is done, and rolled back if a later one fails.

Transactions are independent: one that fails is rolled back by itself, and the others go on. After an error
the GPU is observed again: what could not be rolled back step by step is planned back by difference, once.
Only what the steps say that they made, or what was there before, is destroyed for that
(``plan.reconcile.rollback``); what somebody else has made meanwhile is left alone. A GPU that is then in
neither the new nor the old state is reported as ``partial``; its journal is not ended. Where a virtual
machine may not reset its GPUs, the new MIG mode is left pending: a reboot makes it the current one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from partage.edges.files.journal import Journal, JournalHeader
from partage.edges.hardware.port import Hardware
from partage.errors import HardwareError, PartageError, StateMismatch, Unsupported
from partage.model.gpu import Inventory, NoDriver
from partage.model.ids import GpuUuid
from partage.model.policy import DesiredMig
from partage.model.step import Created, Reset, SetMigMode, Step, Transaction, undo
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.instances import to_renew
from partage.plan.reconcile.mig_plan import live_layout, plan_mig
from partage.plan.reconcile.rollback import (
    ForeignPart,
    foreign_parts,
    hit_by,
    is_as_it_was,
    layouts_beside,
    perhaps_ours,
)
from partage.values import Frozen


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


NEEDS_REBOOT = "the new MIG mode is noted, and takes a reboot of this virtual machine"

FINISH_S = 5.0
"""How long a step under way may continue after its task is cancelled, in seconds."""


class StepStatus(StrEnum):
    """The status of a step."""

    DOING = "doing"
    DONE = "done"
    FAILED = "failed"
    ROLLING_BACK = "rolling back"


Progress = Callable[[Step, StepStatus, str], None]
"""Called for every step: the step, its status, and why it failed."""


class TransactionEnd(StrEnum):
    """How a transaction ended.

    done: all steps. rolled-back: those done were undone. partial: some could not be undone.
    not-started: none was done. pending-reboot: those before a reset were done, and only a reboot goes on.
    """

    DONE = "done"
    ROLLED_BACK = "rolled-back"
    PARTIAL = "partial"
    NOT_STARTED = "not-started"
    PENDING_REBOOT = "pending-reboot"


class TransactionOutcome(Frozen):
    """The outcome of one transaction.

    done: the steps that were done, and what each created. failed: the step that failed, error: why.
    rollback_failure: what could not be rolled back, a sentence. left_alone: what a rollback found that is
    not of this transaction.
    """

    transaction: Transaction
    ending: TransactionEnd
    done: tuple[tuple[Step, Created | None], ...] = ()
    failed: Step | None = None
    error: PartageError | None = None
    rollback_failure: str = ""
    left_alone: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why it was not done, a sentence; empty if it was."""
        if self.error is None:
            return ""
        where = f"{self.failed}: " if self.failed is not None else ""
        found = f"{where}{self.error}"
        if self.ending is TransactionEnd.PENDING_REBOOT:
            found += f"; {NEEDS_REBOOT}"
        if self.rollback_failure:
            found += f"; it could not be rolled back: {self.rollback_failure}"
        return f"{found}; {self.left_alone_words}" if self.left_alone else found

    @property
    def left_alone_words(self) -> str:
        """What a rollback found and left alone, a clause; empty: nothing."""
        if not self.left_alone:
            return ""
        return f"left alone, as this change is not known to have made it: {', '.join(self.left_alone)}"


class JournalFailed(PartageError):
    """The journal cannot be written, so nothing may be done."""


class Executor(Struct):
    """Carries out transactions on one node. journal: None on a simulated node."""

    hardware: Hardware
    journal: Journal | None
    geometry_of: GeometryOf
    progress: Progress

    async def execute(
        self, transactions: Sequence[Transaction], header: JournalHeader, inventory: Inventory
    ) -> tuple[TransactionOutcome, ...]:
        """Do all transactions, one after the other. Raises JournalFailed once something was done.

        inventory: of the node for which they were planned.

        A cancelled call finishes the step that is under way, within FINISH_S, and leaves a journal without an
        end, as a killed process does.
        """
        try:
            await self._write(lambda journal: journal.begin(header))
        except JournalFailed as error:
            return tuple(
                TransactionOutcome(transaction, TransactionEnd.NOT_STARTED, error=error)
                for transaction in transactions
            )
        try:
            outcomes = [
                await self._transaction(transaction, header.before, inventory) for transaction in transactions
            ]
            if all(outcome.ending is not TransactionEnd.PARTIAL for outcome in outcomes):
                await self._write(lambda journal: journal.end())
            return tuple(outcomes)
        finally:
            if self.journal is not None:
                self.journal.close()

    async def _transaction(
        self, transaction: Transaction, before: Mapping[GpuUuid, DesiredMig], inventory: Inventory
    ) -> TransactionOutcome:
        done: list[tuple[Step, Created | None]] = []
        for step in transaction.steps:
            try:
                done.append((step, await self._step(step, StepStatus.DOING)))
            except HardwareError as error:
                if inventory.virtual and isinstance(step, Reset) and isinstance(error, Unsupported):
                    ending = TransactionEnd.PENDING_REBOOT
                    return TransactionOutcome(transaction, ending, tuple(done), step, error)
                was = {uuid: before[uuid] for uuid in transaction.gpus if uuid in before}
                rollback = Rollback(
                    self.hardware, self._take_back, self.geometry_of, inventory, was, list(done)
                )
                failure = await rollback.run(step, error)
                ending = TransactionEnd.PARTIAL if failure else TransactionEnd.ROLLED_BACK
                alone = tuple(map(str, rollback.foreign))
                return TransactionOutcome(transaction, ending, tuple(done), step, error, failure, alone)
        return TransactionOutcome(transaction, TransactionEnd.DONE, tuple(done))

    async def _step(self, step: Step, phase: StepStatus) -> Created | None:
        await self._write(lambda journal: journal.doing(step))
        self.progress(step, phase, "")
        task = asyncio.create_task(self.hardware.perform(step), name="step")
        try:
            made = await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._finish(task)
            raise
        except HardwareError as error:
            reason = str(error)
            await self._write(lambda journal: journal.failed(reason))
            self.progress(step, StepStatus.FAILED, reason)
            raise
        await self._write(lambda journal: journal.done(made))
        self.progress(step, StepStatus.DONE, "")
        return made

    async def _take_back(self, step: Step) -> Created | None:
        return await self._step(step, StepStatus.ROLLING_BACK)

    async def _finish(self, task: asyncio.Task[Created | None]) -> None:
        """Wait for a step to end, and journal it: the driver carries it out anyway."""
        await asyncio.wait({task}, timeout=FINISH_S)
        if not task.done():
            task.cancel()
        elif not task.cancelled():
            error = task.exception()
            if error is not None:
                await self._write(lambda journal: journal.failed(str(error)))
            else:
                await self._write(lambda journal: journal.done(task.result()))

    async def _write(self, entry: Callable[[Journal], None]) -> None:
        """Write to the journal without blocking the loop."""
        if self.journal is None:
            return
        try:
            await asyncio.to_thread(entry, self.journal)
        except OSError as error:
            hint = "no GPU is changed without a journal entry"
            raise JournalFailed(f"the journal cannot be written: {error.strerror}", hint) from error


def layouts_before(inventory: Inventory, transactions: Iterable[Transaction]) -> dict[GpuUuid, DesiredMig]:
    """The live MIG layouts of the GPUs that the transactions touch, for a rollback."""
    gpus = dict.fromkeys(uuid for transaction in transactions for uuid in transaction.gpus)
    found = ((uuid, inventory.gpu(uuid)) for uuid in gpus)
    return {uuid: live_layout(gpu) for uuid, gpu in found if gpu is not None and gpu.mig_mode is not None}

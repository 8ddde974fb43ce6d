"""Carries out transactions: each step is journalled before it is done, and rolled back if a later one fails.

Transactions are independent: one that fails is rolled back by itself, and the others go on. After an error
the GPU is observed again: what could not be rolled back step by step is planned back by difference, once. A
GPU that is then in neither the new nor the old state is reported as ``partial``; its journal is not ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from partage.edges.files.journal import Journal, JournalHeader
from partage.edges.hardware.port import Hardware
from partage.errors import HardwareError, PartageError
from partage.model.gpu import Gpu, Inventory, NoDriver
from partage.model.ids import GpuUuid
from partage.model.policy import DesiredMig
from partage.model.step import Created, Step, Transaction, undo
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.gpu_mig_plan import live_layout
from partage.plan.reconcile.live_instances import to_renew
from partage.plan.reconcile.mig_plan import plan_mig
from partage.values import Frozen

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
    not-started: none was done.
    """

    DONE = "done"
    ROLLED_BACK = "rolled-back"
    PARTIAL = "partial"
    NOT_STARTED = "not-started"


class TransactionOutcome(Frozen):
    """The outcome of one transaction.

    done: the steps that were done, and what each created. failed: the step that failed, error: why.
    rollback_failure: what could not be rolled back, a sentence.
    """

    transaction: Transaction
    ending: TransactionEnd
    done: tuple[tuple[Step, Created | None], ...] = ()
    failed: Step | None = None
    error: PartageError | None = None
    rollback_failure: str = ""

    @property
    def reason(self) -> str:
        """Why it was not done, a sentence; empty if it was."""
        if self.error is None:
            return ""
        where = f"{self.failed}: " if self.failed is not None else ""
        return f"{where}{self.error}" + (
            f"; it could not be rolled back: {self.rollback_failure}" if self.rollback_failure else ""
        )


class JournalFailed(PartageError):
    """The journal cannot be written, so nothing may be done."""


class Executor(Struct):
    """Carries out transactions on one node. journal: None on a simulated node."""

    hardware: Hardware
    journal: Journal | None
    geometry_of: GeometryOf
    progress: Progress

    async def execute(
        self, transactions: Sequence[Transaction], header: JournalHeader
    ) -> tuple[TransactionOutcome, ...]:
        """Do all transactions, one after the other. Raises JournalFailed once something was done.

        A cancelled call finishes the step that is under way, within FINISH_S, and leaves a journal without an
        end, as a killed process does.
        """
        try:
            await self._write(lambda journal: journal.begin(header))
        except JournalFailed as error:
            return tuple(
                TransactionOutcome(one, TransactionEnd.NOT_STARTED, error=error) for one in transactions
            )
        try:
            outcomes = [await self._transaction(one, header.before) for one in transactions]
            if all(outcome.ending is not TransactionEnd.PARTIAL for outcome in outcomes):
                await self._write(lambda journal: journal.end())
            return tuple(outcomes)
        finally:
            if self.journal is not None:
                self.journal.close()

    async def _transaction(
        self, transaction: Transaction, before: Mapping[GpuUuid, DesiredMig]
    ) -> TransactionOutcome:
        done: list[tuple[Step, Created | None]] = []
        for step in transaction.steps:
            try:
                done.append((step, await self._step(step, StepStatus.DOING)))
            except HardwareError as error:
                failure = await self._roll_back(transaction, done, before)
                ending = TransactionEnd.PARTIAL if failure else TransactionEnd.ROLLED_BACK
                return TransactionOutcome(transaction, ending, tuple(done), step, error, failure)
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

    async def _roll_back(
        self,
        transaction: Transaction,
        done: Iterable[tuple[Step, Created | None]],
        before: Mapping[GpuUuid, DesiredMig],
    ) -> str:
        """Roll the GPUs of a transaction back. Returns why that failed; empty if it did not."""
        was = {uuid: before[uuid] for uuid in transaction.gpus if uuid in before}
        stuck = await self._back(undo(done))
        try:
            inventory = await self.hardware.observe()
            if not _differing(inventory, was):
                return ""
            # The step that failed was done all the same, or one of its predecessors could not be undone.
            renew = to_renew(inventory, *stuck) if stuck else {}
            uses = await self.hardware.uses()
            plan = plan_mig(inventory, was, self.geometry_of, uses, renew=renew)
            if plan.blocked:
                return "; ".join(one.reason for one in plan.blocked)
            stuck = await self._back(step for one in plan.transactions for step in one.steps) or stuck
            differing = _differing(await self.hardware.observe(), was)
        except HardwareError as error:
            return str(error)
        return f"{differing}: {stuck[1]}" if differing and stuck else differing

    async def _back(self, steps: Iterable[Step]) -> tuple[Step, HardwareError] | None:
        """Do the steps until one fails; returns that one, and why."""
        for step in steps:
            try:
                await self._step(step, StepStatus.ROLLING_BACK)
            except HardwareError as error:
                return step, error
        return None

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
    gpus = dict.fromkeys(uuid for one in transactions for uuid in one.gpus)
    found = ((uuid, inventory.gpu(uuid)) for uuid in gpus)
    return {uuid: live_layout(gpu) for uuid, gpu in found if gpu is not None and gpu.mig_mode is not None}


def _differing(inventory: Inventory, was: Mapping[GpuUuid, DesiredMig]) -> str:
    """Which GPUs differ from their old layout, a sentence; empty: none."""
    if isinstance(inventory.driver, NoDriver):
        return inventory.driver.reason
    lost = {gpu.uuid: gpu for gpu in inventory.lost}
    said = []
    for uuid, layout in was.items():
        gpu = inventory.gpu(uuid)
        if gpu is None:
            said.append(f"GPU {lost[uuid].index} is lost" if uuid in lost else f"{uuid} does not answer")
        elif not _is_as(gpu, layout):
            said.append(f"GPU {gpu.index} is not as it was")
    return "; ".join(said)


def _is_as(gpu: Gpu, layout: DesiredMig) -> bool:
    """Whether the layout matches. An empty GPU instance does not: a failed creation may have left it."""
    settled = gpu.mig_mode is None or gpu.mig_mode.current == gpu.mig_mode.pending
    return settled and not gpu.empty_instances and live_layout(gpu) == layout

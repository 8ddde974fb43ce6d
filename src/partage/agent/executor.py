"""Do what was planned: step by step, each written down before it is done, and taken back where one fails.

Units of steps are independent: one that fails is taken back by itself, and the others go on. After an error
it is the GPU, read again, that counts: what could not be taken back step by step is planned back by
difference, once. What is then still neither new nor old is reported as ``torn``, and its journal has no end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from partage.edges.files.journal import Journal, JournalHeader
from partage.edges.hardware.port import Hardware
from partage.errors import HardwareError, PartageError
from partage.model.gpu import Gpu, Inventory, NoDriver
from partage.model.policy import DesiredMig
from partage.model.step import Created, Step, undo
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.gpu_mig_plan import as_found
from partage.plan.reconcile.live_instances import to_renew
from partage.plan.reconcile.mig_plan import Transaction, node_steps

FINISH_S = 5.0
"""How long a step that is under way may go on when the one who does it is told to stop."""


class StepStatus(StrEnum):
    """Where a step stands."""

    DOING = "doing"
    DONE = "done"
    FAILED = "failed"
    BACK = "taking back"


Progress = Callable[[Step, StepStatus, str], None]
"""Hears of every step: what, where it stands, and why it failed."""


class TransactionEnd(StrEnum):
    """What became of a unit. torn: neither as wanted nor as it was."""

    DONE = "done"
    BACK = "back"
    TORN = "torn"


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """What became of the steps that belong together.

    done: the steps that were done, and what each brought. failed: the step that could not be, and error why.
    torn: what could not be taken back, a sentence.
    """

    unit: Transaction
    ending: TransactionEnd
    done: tuple[tuple[Step, Created | None], ...] = ()
    failed: Step | None = None
    error: PartageError | None = None
    torn: str = ""


class JournalFailed(PartageError):
    """The journal cannot be written, and so nothing may be done."""


@dataclass(slots=True)
class Executor:
    """Executes units against one node. journal: None where nothing of the node outlives the process."""

    hardware: Hardware
    journal: Journal | None
    geometry_of: GeometryOf
    progress: Progress

    async def execute(
        self, units: Sequence[Transaction], beginning: JournalHeader
    ) -> tuple[TransactionOutcome, ...]:
        """Do all units, one after the other. Raises JournalFailed.

        A cancelled call finishes the step that is under way, within FINISH_S, and leaves a journal without an
        end, as a killed process does.
        """
        await self._write(lambda journal: journal.begin(beginning))
        try:
            outcomes = [await self._unit(unit, beginning.before) for unit in units]
            if all(outcome.ending is not TransactionEnd.TORN for outcome in outcomes):
                await self._write(lambda journal: journal.end())
            return tuple(outcomes)
        finally:
            if self.journal is not None:
                self.journal.close()

    async def _unit(self, unit: Transaction, before: Mapping[str, DesiredMig]) -> TransactionOutcome:
        done: list[tuple[Step, Created | None]] = []
        for step in unit.steps:
            try:
                done.append((step, await self._step(step, StepStatus.DOING)))
            except HardwareError as error:
                torn = await self._take_back(unit, done, before)
                ending = TransactionEnd.TORN if torn else TransactionEnd.BACK
                return TransactionOutcome(unit, ending, tuple(done), step, error, torn)
        return TransactionOutcome(unit, TransactionEnd.DONE, tuple(done))

    async def _step(self, step: Step, phase: StepStatus) -> Created | None:
        await self._write(lambda journal: journal.doing(step))
        self.progress(step, phase, "")
        act = asyncio.create_task(self.hardware.perform(step), name="step")
        try:
            made = await asyncio.shield(act)
        except asyncio.CancelledError:
            await self._finish(act)
            raise
        except HardwareError as error:
            reason = str(error)
            await self._write(lambda journal: journal.failed(reason))
            self.progress(step, StepStatus.FAILED, reason)
            raise
        await self._write(lambda journal: journal.done(made))
        self.progress(step, StepStatus.DONE, "")
        return made

    async def _finish(self, act: asyncio.Task[Created | None]) -> None:
        """Let a step come to its end: the driver goes on with it anyway, and so its end is written down."""
        await asyncio.wait({act}, timeout=FINISH_S)
        if not act.done():
            act.cancel()
        elif not act.cancelled():
            error = act.exception()
            if error is not None:
                await self._write(lambda journal: journal.failed(str(error)))
            else:
                await self._write(lambda journal: journal.done(act.result()))

    async def _take_back(
        self, unit: Transaction, done: Iterable[tuple[Step, Created | None]], before: Mapping[str, DesiredMig]
    ) -> str:
        """Have the GPUs of a unit as they were. Why that cannot be, or nothing."""
        was = {uuid: before[uuid] for uuid in unit.gpus if uuid in before}
        stuck = await self._back(undo(done))
        try:
            inventory = await self.hardware.observe()
            if not _differing(inventory, was):
                return ""
            # The step that failed was done all the same, or one of its predecessors could not be undone.
            renew = to_renew(inventory, *stuck) if stuck else {}
            uses = await self.hardware.uses()
            plan = node_steps(inventory, was, self.geometry_of, uses, renew=renew)
            if plan.refused:
                return "; ".join(refused.reason for refused in plan.refused)
            stuck = await self._back(step for one in plan.units for step in one.steps) or stuck
            differing = _differing(await self.hardware.observe(), was)
        except HardwareError as error:
            return str(error)
        return f"{differing}: {stuck[1]}" if differing and stuck else differing

    async def _back(self, steps: Iterable[Step]) -> tuple[Step, HardwareError] | None:
        """Do the steps, up to one that fails: that one, and why."""
        for step in steps:
            try:
                await self._step(step, StepStatus.BACK)
            except HardwareError as error:
                return step, error
        return None

    async def _write(self, entry: Callable[[Journal], None]) -> None:
        """Write to the journal without holding up the loop."""
        if self.journal is None:
            return
        try:
            await asyncio.to_thread(entry, self.journal)
        except OSError as error:
            hint = "nothing is done to a GPU that is not written down before"
            raise JournalFailed(f"the journal cannot be written: {error.strerror}", hint) from error


def before(inventory: Inventory, units: Iterable[Transaction]) -> dict[str, DesiredMig]:
    """What lives on the GPUs that the units touch, as wishes that bring it back."""
    gpus = dict.fromkeys(uuid for unit in units for uuid in unit.gpus)
    found = ((uuid, inventory.gpu(uuid)) for uuid in gpus)
    return {uuid: as_found(gpu) for uuid, gpu in found if gpu is not None and gpu.mig_mode is not None}


def _differing(inventory: Inventory, was: Mapping[str, DesiredMig]) -> str:
    """Which GPUs are not as they were, in words; empty: none."""
    if isinstance(inventory.driver, NoDriver):
        return inventory.driver.reason
    lost = {gpu.uuid: gpu for gpu in inventory.lost}
    said = []
    for uuid, wish in was.items():
        gpu = inventory.gpu(uuid)
        if gpu is None:
            said.append(f"GPU {lost[uuid].index} is lost" if uuid in lost else f"{uuid} does not answer")
        elif not _is_as(gpu, wish):
            said.append(f"GPU {gpu.index} is not as it was")
    return "; ".join(said)


def _is_as(gpu: Gpu, wish: DesiredMig) -> bool:
    """An empty GPU instance counts as a difference: it may be what a creation left that was said to fail."""
    settled = gpu.mig_mode is None or gpu.mig_mode.current == gpu.mig_mode.pending
    return settled and not gpu.empty_instances and as_found(gpu) == wish

"""The reconciler's port on a real agent: observers, executor, and what is kept on disk: the settings of GPUs
before the agent changed them, and the journal of an interrupted change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from partage.agent.observers.hardware import HardwareObserver
from partage.agent.observers.policy import PolicyObserver
from partage.agent.observers.settings import SettingsObserver, slices_matter
from partage.agent.options import Intervals
from partage.agent.reconciler.reconciler import makes_layout
from partage.errors import HardwareError
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.step import Step, Transaction, gpus_of
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.node_plan import NodePlan, Observed
from partage.plan.reconcile.settings_steps import OriginalSettings, needed_originals, note_originals

if TYPE_CHECKING:
    from partage.agent.reconciler.executor import Progress, StepStatus, TransactionOutcome


log = logging.getLogger(__name__)


class UnfinishedChange(Struct):
    """An interrupted change. gpus: of the journal without an end; None: there is no such journal."""

    state_dir: Path
    gpus: frozenset[GpuUuid] | None = None

    def read(self) -> frozenset[GpuUuid]:
        """Read the journal of an earlier agent. Returns GPUs with a step that the driver may still carry
        out."""
        from partage.edges.files.journal import Unfinished, UnreadableJournal, read_journal

        last = read_journal(self.state_dir)
        if isinstance(last, UnreadableJournal):
            log.warning("journal cannot be used", extra={"reason": last.reason})
        if not isinstance(last, Unfinished):
            return frozenset()
        log.warning(
            "a change was interrupted", extra={"reason": f"{last}; planned again from what is there now"}
        )
        self.gpus = frozenset(last.header.before)
        return self.gpus if last.open else frozenset()

    async def conclude(self, settled: Collection[GpuUuid]) -> None:
        """End the journal once all its GPUs have the desired layout. settled: GPUs that have it."""
        if self.gpus is None or not self.gpus <= set(settled):
            return
        from partage.edges.files.journal import Journal

        try:
            await asyncio.to_thread(Journal(self.state_dir).conclude)
        except OSError as error:
            log.warning("journal cannot be ended", extra={"reason": error.strerror})
        self.gpus = None


class Originals(Struct):
    """The original settings. by_gpu: by GPU UUID. save: writes them to disk."""

    save: Callable[[Mapping[GpuUuid, OriginalSettings]], Awaitable[None]]
    by_gpu: Mapping[GpuUuid, OriginalSettings] = field(default_factory=dict)

    def prune(self, desired: DesiredState, observed: Observed) -> None:
        """Drop settings that were restored, or changed by others since."""
        if not self.by_gpu:
            return
        answering = (gpu for gpu in observed.node.inventory if gpu.uuid not in observed.node.lost)
        modes = {gpu.uuid: gpu.compute_mode for gpu in answering}
        self.by_gpu = needed_originals(self.by_gpu, desired.settings, modes, observed.slices)

    async def note(self, steps: Iterable[Step]) -> None:
        """Save the settings that these steps are about to change."""
        known = note_originals(steps, self.by_gpu)
        if known != self.by_gpu:
            self.by_gpu = known
            await self.save(known)

    def forget(self) -> None:
        """The node has booted, which resets all settings."""
        self.by_gpu = {}


class NodePort(Struct):
    """See ``ReconcilerPort``.

    planned: computes a plan. until_usable: waits until containers can get new devices. look: looks whether
    another device plugin serves the GPUs; nothing where there is no kubelet. slices_asked: whether a claim
    asks for time slices.
    """

    hardware: HardwareObserver
    settings: SettingsObserver
    policies: PolicyObserver
    originals: Originals
    unfinished: UnfinishedChange
    geometry_of: GeometryOf
    intervals: Intervals
    planned: Callable[[], NodePlan]
    until_usable: Callable[[Inventory], Awaitable[None]]
    ask: Callable[[], None]
    look: Callable[[], None] = lambda: None
    slices_asked: Callable[[], bool] = lambda: False

    def plan(self) -> NodePlan:
        """A fresh plan."""
        return self.planned()

    def must_observe(self) -> bool:
        """Daemons once after the start and after a boot; time slices where they matter."""
        return self.settings.daemons is None or (self._slices_matter() and self.settings.slices_are_old)

    def pause_s(self, *, settled: bool) -> float | None:
        """See ``Intervals``."""
        if not settled:
            return self.intervals.holders_waited_s
        if self.settings.daemons:
            return self.intervals.conditions_s
        return self.intervals.observe_s if self._slices_matter() else None

    async def observe(self, *, users: bool) -> bool:
        """False: no answer; the other observers log why."""
        self.look()
        try:
            if await self.settings.observe(users=users, slices=self._slices_matter()):
                self.ask()
        except HardwareError:
            return False
        return True

    async def remember(self, steps: Iterable[Step]) -> None:
        """Write original settings to disk."""
        await self.originals.note(steps)

    async def carry_out(self, transaction: Transaction) -> TransactionOutcome:
        """MIG layouts are journalled. Settings need no journal: original values are on disk, and the rest
        can be observed."""
        from partage.agent.reconciler.executor import (
            Executor,
            JournalFailed,
            TransactionEnd,
            TransactionOutcome,
            layouts_before,
        )
        from partage.edges.files.journal import Journal, JournalHeader

        assert self.hardware.node is not None
        inventory = self.hardware.node.inventory
        journal, before = None, {}
        if makes_layout(transaction):
            journal, before = Journal(self.unfinished.state_dir), layouts_before(inventory, [transaction])
            self.unfinished.gpus = frozenset(transaction.gpus)
        header = JournalHeader(inventory.boot_id, self.policies.digest(), before)
        executor = Executor(self.hardware.hardware, journal, self.geometry_of, log_progress(inventory))
        try:
            (outcome,) = await executor.execute([transaction], header, inventory)
        except JournalFailed as error:
            return TransactionOutcome(transaction, TransactionEnd.PARTIAL, error=error)
        ended = (TransactionEnd.DONE, TransactionEnd.ROLLED_BACK, TransactionEnd.PENDING_REBOOT)
        if journal is not None and outcome.ending in ended:
            self.unfinished.gpus = None
        return outcome

    async def read_back(self) -> Inventory:
        """Observe the node, and have time slices asked again."""
        self.settings.slices_changed()
        inventory = await self.hardware.observe_now()
        await self.until_usable(inventory)
        return inventory

    async def conclude(self, plan: NodePlan) -> None:
        """End the journal of a change that was cut off."""
        desired = self.policies.desired
        if desired is not None:
            await self.unfinished.conclude(desired.layouts.keys() - plan.unsettled)

    def _slices_matter(self) -> bool:
        return self.slices_asked() or slices_matter(self.policies.desired, self.originals.by_gpu)


def log_progress(inventory: Inventory) -> Progress:
    """Writes every step to the log."""
    indexes = {gpu.uuid: gpu.index for gpu in inventory}

    def progress(step: Step, status: StepStatus, reason: str) -> None:
        gpus = [indexes.get(gpu) for gpu in gpus_of(step)]
        facts = {"gpus": gpus, "step": str(step), "reason": reason or None}
        log.log(logging.WARNING if reason else logging.INFO, f"step: {status}", extra=facts)

    return progress

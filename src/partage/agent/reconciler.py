"""Does to GPUs what the policy needs: a part of the turn decides, this task acts, one unit after the other.

The turn withdraws what has to go and says which units of steps stand ready (``plan.reconcile.way``). They are
executed here, beside the loop: a reset takes seconds, and the other GPUs go on meanwhile. A GPU in hand
keeps what it serves until it was looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from partage.agent.observers.hardware import HardwareObserver
from partage.agent.observers.settings import SettingsObserver
from partage.agent.options import Intervals
from partage.agent.retries import Retries
from partage.errors import HardwareError
from partage.model.gpu import Inventory, NoDriver
from partage.model.policy import Policy
from partage.model.step import (
    CreateCompute,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    GpuUse,
    Reset,
    SetMigMode,
    Step,
    gpus_of,
)
from partage.plan.offer.assign import GeometryOf
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.holders import entry_uses
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.reconcile.settings import OriginalSettings, remembered, still_ours
from partage.plan.reconcile.transition import GpuServing
from partage.plan.serve.ledger import Entry

if TYPE_CHECKING:  # loaded once a policy needs something done: many nodes need nothing
    from partage.agent.executor import Progress, StepStatus, TransactionOutcome
    from partage.plan.reconcile.mig_plan import Transaction
    from partage.plan.reconcile.way import Way

log = logging.getLogger(__name__)

CUT_OFF_S = 5.0
"""How long a step of an agent that was killed may still go on in the driver. An instance takes about a
second; a reset takes longer, and leaves nothing that could be given out."""

_NOBODY: frozenset[str] = frozenset()
_LAYOUT = (SetMigMode, Reset, DestroyCompute, DestroyInstance, CreateInstance, CreateCompute)


@dataclass(slots=True)
class Reconciler:
    """What is done to the GPUs of one node.

    ask: asks for a turn. digest: of the policy's text, for the journal. fit: waits until containers can be
    given the devices of this inventory. remember: has it on disk how GPUs were set before we changed them.
    in_hand: UUIDs of GPUs that are being changed at this moment. made: units so far, by how they ended.
    before: how GPUs were set before we changed them.
    _cut_off: GPUs whose journal has no end; None: it has one.
    """

    sense: HardwareObserver
    looks: SettingsObserver
    failures: Retries
    state_dir: Path
    geometry_of: GeometryOf
    ask: Callable[[], None]
    intervals: Intervals
    digest: Callable[[], str] = str
    fit: Callable[[Inventory], Awaitable[None]] | None = None
    remember: Callable[[Mapping[str, OriginalSettings]], Awaitable[None]] | None = None
    in_hand: frozenset[str] = _NOBODY
    made: Counter[str] = field(default_factory=Counter)
    before: Mapping[str, OriginalSettings] = field(default_factory=dict)
    _entries: tuple[Entry, ...] = ()
    _serving: Mapping[str, GpuServing] = field(default_factory=dict)
    _policy: Policy | None = None
    _base: tuple[DesiredState, Mapping[str, str]] | None = None
    _key: object = None
    _found: Way | None = None
    _ready: tuple[Transaction, ...] = ()
    _cut_off: frozenset[str] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    # --- the loop's side ---

    def meanwhile(
        self,
        wish: DesiredState | None,
        node: KnownNode | None,
        entries: tuple[Entry, ...],
        serving: Mapping[str, GpuServing],
    ) -> DesiredState | None:
        """What may be offered of ``wish`` until all is done that it needs. serving: after the last turn."""
        self._entries, self._serving = entries, serving
        if wish is None or node is None or isinstance(node.inventory.driver, NoDriver):
            self._base = self._found = None
            self._ready = ()
            return wish
        if wish.policy != self._policy:
            self._policy = wish.policy
            self.failures.keep(())
            self.looks.slices_changed()
        if not self._concerns(wish):
            self._base, self._found, self._ready = (wish, node.lost), None, ()
            return wish
        found = self._plan(wish, node.lost)
        self.failures.keep(found.changing)
        return replace(found.wish, pending={**found.wish.pending, **self._said()})

    @property
    def unwell(self) -> Mapping[str, str]:
        """Devices whose shares cannot be used at this moment, and why."""
        return self._found.unwell if self._found is not None else {}

    def booted(self) -> None:
        """The node has booted: nothing is set any more as it was."""
        self.before = {}
        self.looks.forget()

    def stand(self, serving: Mapping[str, GpuServing], restored: Collection[str]) -> None:
        """How the GPUs stand after a turn: some may now be ready to be changed."""
        self._ready = ()
        if self._is_over() or self._is_to_be_asked():
            self._news.set()
        if self._found is not None and self._found.changing:
            from partage.plan.reconcile.way import ready

            self._ready = ready(self._found, serving, restored)
            self._news.set()

    def _concerns(self, wish: DesiredState) -> bool:
        """Whether anything may have to be done: wanted, or left over from an earlier policy."""
        return bool(wish.layouts or wish.settings or self.looks.daemons or self.before)

    def _plan(self, wish: DesiredState, lost: Mapping[str, str]) -> Way:
        """Plan anew where something is another thing. Where all is as wanted, it does not matter who holds
        what."""
        from partage.plan.reconcile.relayout import relayout
        from partage.plan.reconcile.way import Set, way

        modes = {gpu.uuid: gpu.compute_mode for gpu in wish.inventory if gpu.uuid not in lost}
        self.before = still_ours(self.before, wish.settings, modes, self.looks.slices)
        now = Set(self.looks.daemons, self.looks.slices, self.before)
        same = self._base is not None and self._base[0] is wish and self._base[1] == lost
        key = (now, self._serving, self._held(wish) if self._waits() else None)
        if self._found is None or not same or key != self._key:
            held = self._held(wish)
            found = relayout(wish, lost, self.geometry_of, held, self.failures.renew)
            self._base, self._found = (wish, lost), way(found, now, self._serving, lost)
            self._key = (now, self._serving, held if self._found.changing else None)
        return self._found

    def _held(self, wish: DesiredState) -> tuple[GpuUse, ...]:
        """Who holds what, pods and others."""
        return (*self.looks.others(), *entry_uses(self._entries, wish.inventory))

    def _said(self) -> dict[str, str]:
        wants = self._base[0].settings if self._base is not None else {}
        said = {
            gpu: f"its time slice cannot be set: {reason}"
            for gpu, reason in self.looks.sliceless.items()
            if gpu in wants and wants[gpu].interval is not None
        }
        return {**said, **self.failures.reasons, **dict.fromkeys(self.in_hand, "it is being changed")}

    # --- the task ---

    async def run(self) -> None:
        """Do what stands ready, for ever. Who is in the way and is no pod is asked for now and then."""
        await self._outlast()
        while True:
            await self._something_to_ask()
            if not await self._has_asked():
                await asyncio.sleep(self.intervals.retry_s)
            elif units := self._next(self._still_the_way()):
                await self._make(units)
            elif self._waits():
                self._ready = ()  # until the next turn has seen what we now know
                self.ask()

    async def _something_to_ask(self) -> None:
        """Return when a unit stands ready, and now and then while there is something to look after."""
        while not self._next(self._ready) and not self._is_to_be_asked():
            await self._conclude()
            self._news.clear()
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._news.wait()
            except TimeoutError:
                return

    def _pause_s(self) -> float | None:
        if self._waits():
            return self.intervals.holders_waited_s
        if self.looks.daemons:
            return self.intervals.conditions_s
        return self.intervals.observe_s if self._has_slices() else None

    def _waits(self) -> bool:
        """Whether any GPU is not as wanted."""
        return self._found is not None and bool(self._found.changing)

    def _is_to_be_asked(self) -> bool:
        """Whether something has to be known that nobody has asked for yet."""
        return self.looks.daemons is None or (self._has_slices() and self.looks.slices_are_old)

    def _has_slices(self) -> bool:
        """Whether time slices matter: wanted, or to be given back."""
        wanted = self._base[0].settings.values() if self._base is not None else ()
        return any(one.interval is not None for one in (*wanted, *self.before.values()))

    async def _has_asked(self) -> bool:
        """Ask who uses the GPUs, and how they are set. False: nobody answers, and so nothing is done."""
        try:
            if await self.looks.look(users=self._waits(), slices=self._has_slices()):
                self.ask()
        except HardwareError:  # told by those who ask all the time
            return False
        return True

    def _still_the_way(self) -> tuple[Transaction, ...]:
        """Units that stand ready, and are what is to be done now that more is known."""
        if self._base is None or not self._concerns(self._base[0]):
            return ()
        units = self._plan(*self._base).units
        return tuple(unit for unit in self._ready if unit in units)

    def _next(self, units: Iterable[Transaction]) -> tuple[Transaction, ...]:
        """What is done next, of what did not fail a moment ago: one layout, or settings of many GPUs at a
        time."""
        due = [unit for unit in units if all(map(self.failures.is_due, unit.gpus))]
        if due and _laid_out(due[0]):
            return (due[0],)
        return tuple(unit for unit in due if not _laid_out(unit))

    async def _make(self, units: tuple[Transaction, ...]) -> None:
        """Execute units side by side, and look at the node before their GPUs are let go."""
        self.in_hand = frozenset(gpu for unit in units for gpu in unit.gpus)
        assert self._base is not None
        inventory = self._base[0].inventory
        await self._note(step for unit in units for step in unit.steps)
        made = (self._lay_out if _laid_out(unit) else self._set for unit in units)
        outcomes = await asyncio.gather(
            *(make(unit, inventory) for make, unit in zip(made, units, strict=True))
        )
        for unit, outcome in zip(units, outcomes, strict=True):
            self._judge(unit, outcome)
        self.looks.slices_changed()
        await self._let_go(outcomes[0])

    async def _let_go(self, outcome: TransactionOutcome | str = "") -> None:
        """Let the GPUs in hand go, once it was seen how they are now."""
        await self.sense.observe_now()
        await self._has_asked()
        self._renew(outcome)
        if self.fit is not None and self.sense.node is not None:
            await self.fit(self.sense.node.inventory)
        self.in_hand, self._ready = _NOBODY, ()
        self._base = self._found = None  # a turn may be under way that saw the node as it was
        self.ask()

    async def _set(self, unit: Transaction, inventory: Inventory) -> TransactionOutcome | str:
        """Settings need no journal: what has to be given back is remembered, the rest can be seen."""
        from partage.agent.executor import Executor
        from partage.edges.files.journal import JournalHeader

        executor = Executor(self.sense.hardware, None, self.geometry_of, _teller(inventory))
        (outcome,) = await executor.execute([unit], JournalHeader(inventory.boot_id, self.digest()))
        return outcome

    async def _lay_out(self, unit: Transaction, inventory: Inventory) -> TransactionOutcome | str:
        """What became of it; a reason why nothing could be begun."""
        from partage.agent.executor import Executor, JournalFailed, TransactionEnd, before
        from partage.edges.files.journal import Journal, JournalHeader

        self._cut_off = frozenset(unit.gpus)
        beginning = JournalHeader(inventory.boot_id, self.digest(), before(inventory, [unit]))
        journal = Journal(self.state_dir)
        executor = Executor(self.sense.hardware, journal, self.geometry_of, _teller(inventory))
        try:
            (outcome,) = await executor.execute([unit], beginning)
        except JournalFailed as error:
            return str(error)
        if outcome.ending is not TransactionEnd.TORN:
            self._cut_off = None
        return outcome

    async def _note(self, steps: Iterable[Step]) -> None:
        """How the GPUs are set now, before it changes: whoever comes after us has to give it back."""
        before = remembered(steps, self.before)
        if before != self.before:
            self.before = before
            if self.remember is not None:
                await self.remember(before)

    def _judge(self, unit: Transaction, outcome: TransactionOutcome | str) -> None:
        if isinstance(outcome, str):
            ending, reason = "not-begun", outcome
        else:
            error, torn = outcome.error, outcome.torn
            ending, reason = str(outcome.ending), "" if error is None else f"{outcome.failed}: {error}"
            reason += f"; it could not be taken back: {torn}" if torn else ""
        self.made[ending] += 1
        if not reason:
            log.info("gpu is as wanted", extra={"gpus": list(unit.gpus)})
            self.failures.forget(unit.gpus)
            return
        log.error("gpu is not as wanted", extra={"gpus": list(unit.gpus), "ending": ending, "reason": reason})
        self.failures.note(unit.gpus, reason)

    def _renew(self, outcome: TransactionOutcome | str) -> None:
        """Where a GPU instance had no room for a compute instance, it is made anew next time."""
        if isinstance(outcome, str) or outcome.failed is None or outcome.error is None or not self.sense.node:
            return
        from partage.plan.reconcile.live_instances import to_renew

        self.failures.note_tight(to_renew(self.sense.node.inventory, outcome.failed, outcome.error))

    def _is_over(self) -> bool:
        """Whether there is a journal without an end, and yet all its GPUs are as the policy wants them."""
        if self._cut_off is None or self._base is None:
            return False
        changing = _NOBODY if self._found is None else self._found.changing
        return self._cut_off <= self._base[0].layouts.keys() - changing

    async def _conclude(self) -> None:
        """End the journal of a change that was cut off, where nothing of it is left to be done."""
        if self._is_over():
            from partage.edges.files.journal import Journal

            try:
                await asyncio.to_thread(Journal(self.state_dir).conclude)
            except OSError as error:
                log.warning("journal cannot be ended", extra={"reason": error.strerror})
            self._cut_off = None

    def begin(self) -> None:
        """See whether an agent before us was cut off. Its GPUs are in hand until its last step is over."""
        from partage.edges.files.journal import Unfinished, UnreadableJournal, read_journal

        last = read_journal(self.state_dir)
        if isinstance(last, UnreadableJournal):
            log.warning("journal is of no use", extra={"reason": last.reason})
        elif isinstance(last, Unfinished):
            log.warning("a change was cut off", extra={"reason": f"{last}; planned anew from what lives now"})
            self._cut_off = frozenset(last.beginning.before)
            self.in_hand = self._cut_off if last.open else _NOBODY

    async def _outlast(self) -> None:
        """The driver goes on with a step whose agent was killed: nobody gets what it may be destroying."""
        if self.in_hand:
            await asyncio.sleep(CUT_OFF_S)
            await self._let_go()


def _laid_out(unit: Transaction) -> bool:
    """Whether a unit changes MIG layouts."""
    return any(isinstance(step, _LAYOUT) for step in unit.steps)


def _teller(inventory: Inventory) -> Progress:
    """Tells the log of every step."""
    indexes = {gpu.uuid: gpu.index for gpu in inventory}

    def progress(step: Step, phase: StepStatus, reason: str) -> None:
        gpus = [indexes.get(gpu) for gpu in gpus_of(step)]
        facts = {"gpus": gpus, "step": str(step), "reason": reason or None}
        log.log(logging.WARNING if reason else logging.INFO, f"step: {phase}", extra=facts)

    return progress

"""Makes MIG layouts: a part of the turn decides, this task acts, one unit of steps after the other.

The turn withdraws what has to go and says which units stand ready (``agent.relayout``). They are executed
here, beside the loop: a reset takes seconds, and the other GPUs go on meanwhile. A GPU in hand keeps what it
serves until it was looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from partage.agent.node import Node
from partage.agent.senses import HardwareSense
from partage.agent.settings import Intervals
from partage.agent.wish import Wish
from partage.errors import HardwareError
from partage.model.gpu import Inventory, NoDriver
from partage.model.policy import Policy
from partage.model.step import Step, Use, gpus_of
from partage.plan.assign import GeometryOf
from partage.plan.ledger import Entry
from partage.plan.transition import Serving
from partage.plan.wishes import entry_uses

if TYPE_CHECKING:  # loaded once a policy wants a layout: most nodes have none
    from partage.agent.execute import Outcome, Phase
    from partage.agent.relayout import Relayout
    from partage.plan.node_steps import Unit

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0
"""Between two attempts at a layout that the hardware refuses, each pause twice the one before."""

_NOBODY: frozenset[str] = frozenset()


def pause_s(tries: int, first_s: float) -> float:
    """How long to wait after so many failures in a row, in seconds."""
    doublings = min(tries - 1, 16)  # of a GPU that failed for a day, more are more than a float can hold
    return min(LONGEST_PAUSE_S, first_s * (1 << doublings))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a GPU is not as wanted though nobody is in the way.

    again_s: when it is tried again. renew: ids of its GPU instances that have to be made anew for that.
    """

    reason: str
    tries: int
    again_s: float
    renew: frozenset[int] = frozenset()


@dataclass(slots=True)
class Layouts:
    """The layouts of one node.

    ask: asks for a turn. digest: of the policy's text, for the journal. fit: waits until containers can be
    given the devices of this inventory.
    in_hand: UUIDs of GPUs that are being changed at this moment. made: units so far, by how they ended.
    _cut_off: of GPUs whose journal has no end.
    """

    sense: HardwareSense
    state_dir: Path
    geometry_of: GeometryOf
    clock: Callable[[], float]
    ask: Callable[[], None]
    intervals: Intervals
    digest: Callable[[], str] = str
    fit: Callable[[Inventory], Awaitable[None]] | None = None
    in_hand: frozenset[str] = _NOBODY
    made: Counter[str] = field(default_factory=Counter)
    _uses: tuple[Use, ...] = ()
    _entries: tuple[Entry, ...] = ()
    _policy: Policy | None = None
    _base: tuple[Wish, Mapping[str, str]] | None = None
    _found: Relayout | None = None
    _held: tuple[Use, ...] = ()
    _ready: tuple[Unit, ...] = ()
    _failures: dict[str, Failure] = field(default_factory=dict)
    _cut_off: frozenset[str] = _NOBODY
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    # --- the loop's side ---

    def meanwhile(self, wish: Wish | None, node: Node | None, entries: tuple[Entry, ...]) -> Wish | None:
        """What may be offered of ``wish`` until the layouts are as it wants them."""
        self._entries = entries
        if wish is None or node is None or not wish.layouts or isinstance(node.inventory.driver, NoDriver):
            self._base = self._found = None
            self._ready = ()
            return wish
        if wish.policy != self._policy:
            self._policy = wish.policy
            self._failures.clear()
        found = self._plan(wish, node.lost)
        self._failures = {gpu: one for gpu, one in self._failures.items() if gpu in found.changing}
        return replace(found.wish, pending={**found.wish.pending, **self._said()})

    def stand(self, serving: Mapping[str, Serving], restored: Collection[str]) -> None:
        """How the GPUs stand after a turn: some may now be ready to be changed."""
        self._ready = ()
        if self._is_over():
            self._news.set()
        if self._found is not None and self._found.changing:
            from partage.agent.relayout import ready

            self._ready = ready(self._found, serving, restored)
            self._news.set()

    def _plan(self, wish: Wish, lost: Mapping[str, str]) -> Relayout:
        """Plan anew where something is another thing. Where all is as wanted, it does not matter who holds
        what."""
        held = (*self._uses, *entry_uses(self._entries, wish.inventory))
        if self._found is not None and self._base is not None and self._base[0] is wish:
            unmoved = not self._found.changing or held == self._held
            if unmoved and self._base[1] == lost:
                return self._found
        from partage.agent.relayout import relayout

        self._base, self._held = (wish, lost), held
        renew = {gpu: failure.renew for gpu, failure in self._failures.items()}
        self._found = relayout(wish, lost, self.geometry_of, held, renew)
        return self._found

    def _said(self) -> dict[str, str]:
        said = {gpu: failure.reason for gpu, failure in self._failures.items()}
        return {**said, **dict.fromkeys(self.in_hand, "it is being changed")}

    # --- the task ---

    async def run(self) -> None:
        """Do what stands ready, for ever. Who is in the way and is no pod is asked for now and then."""
        self._tell_unfinished()
        while True:
            await self._something_to_ask()
            if not await self._has_asked():
                await asyncio.sleep(self.intervals.retry_s)
            elif (unit := self._next(self._still_the_way())) is not None:
                await self._make(unit)
            else:
                self._ready = ()  # until the next turn has seen what we now know
                self.ask()

    async def _something_to_ask(self) -> None:
        """Return when a unit stands ready, and now and then while any GPU is not as wanted."""
        while self._next(self._ready) is None:
            await self._conclude()
            waits = self._found is not None and bool(self._found.changing)
            self._news.clear()
            try:
                async with asyncio.timeout(self.intervals.holders_waited_s if waits else None):
                    await self._news.wait()
            except TimeoutError:
                return

    async def _has_asked(self) -> bool:
        """Ask who uses the GPUs. False: nobody answers, and so nothing is done."""
        try:
            uses = await self.sense.hardware.uses()
        except HardwareError:  # told by those who ask all the time
            return False
        if uses != self._uses:
            self._uses = uses
            self.ask()
        return True

    def _still_the_way(self) -> tuple[Unit, ...]:
        """Units that stand ready, and are what is to be done now that it is known who uses what."""
        units = self._plan(*self._base).plan.units if self._base is not None else ()
        return tuple(unit for unit in self._ready if unit in units)

    def _next(self, units: Iterable[Unit]) -> Unit | None:
        """The first that did not fail a moment ago."""
        now_s = self.clock()
        for unit in units:
            failures = (self._failures[gpu] for gpu in unit.gpus if gpu in self._failures)
            if all(failure.again_s <= now_s for failure in failures):
                return unit
        return None

    async def _make(self, unit: Unit) -> None:
        """Execute one unit, and look at the node before its GPUs are let go."""
        from partage.agent.execute import Ending

        self.in_hand = frozenset(unit.gpus)
        try:
            self._cut_off = frozenset(unit.gpus)
            outcome = await self._execute(unit)
            if not isinstance(outcome, str) and outcome.ending is not Ending.TORN:
                self._cut_off = _NOBODY
            self._judge(unit, outcome)
            await self.sense.observe_now()
            self._renew(outcome)
            if self.fit is not None and self.sense.node is not None:
                await self.fit(self.sense.node.inventory)
        finally:
            self.in_hand, self._ready = _NOBODY, ()
            self._base = self._found = None  # a turn may be under way that saw the node as it was
            self.ask()

    async def _execute(self, unit: Unit) -> Outcome | str:
        """What became of it; a reason why nothing could be begun."""
        from partage.agent.execute import Executor, JournalFailed, before
        from partage.edges.files.journal import Beginning, Journal

        assert self._base is not None
        inventory = self._base[0].inventory
        indexes = {gpu.uuid: gpu.index for gpu in inventory}

        def progress(step: Step, phase: Phase, reason: str) -> None:
            gpus = [indexes.get(gpu) for gpu in gpus_of(step)]
            facts = {"gpus": gpus, "step": str(step), "reason": reason or None}
            log.log(logging.WARNING if reason else logging.INFO, f"layout: {phase}", extra=facts)

        beginning = Beginning(inventory.boot_id, self.digest(), before(inventory, [unit]))
        executor = Executor(self.sense.hardware, Journal(self.state_dir), self.geometry_of, progress)
        try:
            (outcome,) = await executor.execute([unit], beginning)
        except JournalFailed as error:
            return str(error)
        return outcome

    def _judge(self, unit: Unit, outcome: Outcome | str) -> None:
        if isinstance(outcome, str):
            ending, reason = "not-begun", outcome
        else:
            error, torn = outcome.error, outcome.torn
            ending, reason = str(outcome.ending), "" if error is None else f"{outcome.failed}: {error}"
            reason += f"; it could not be taken back: {torn}" if torn else ""
        self.made[ending] += 1
        if not reason:
            log.info("layout is made", extra={"gpus": list(unit.gpus)})
            self._failures = {gpu: one for gpu, one in self._failures.items() if gpu not in unit.gpus}
            return
        log.error("layout is not made", extra={"gpus": list(unit.gpus), "ending": ending, "reason": reason})
        for gpu in unit.gpus:
            tries = self._failures[gpu].tries + 1 if gpu in self._failures else 1
            again_s = self.clock() + pause_s(tries, self.intervals.retry_s)
            self._failures[gpu] = Failure(reason, tries, again_s)

    def _renew(self, outcome: Outcome | str) -> None:
        """Where a GPU instance had no room for a compute instance, it is made anew next time."""
        if isinstance(outcome, str) or outcome.failed is None or outcome.error is None or not self.sense.node:
            return
        from partage.plan.live import to_renew

        tight = to_renew(self.sense.node.inventory, outcome.failed, outcome.error)
        for gpu in tight.keys() & self._failures.keys():
            self._failures[gpu] = replace(self._failures[gpu], renew=tight[gpu])

    def _is_over(self) -> bool:
        """Whether there is a journal without an end, and yet all its GPUs are as the policy wants them."""
        if not self._cut_off or self._found is None or self._base is None:
            return False
        return self._cut_off <= self._base[0].layouts.keys() - self._found.changing

    async def _conclude(self) -> None:
        """End the journal of a change that was cut off, where nothing of it is left to be done."""
        if self._is_over():
            from partage.edges.files.journal import Journal

            try:
                await asyncio.to_thread(Journal(self.state_dir).conclude)
            except OSError as error:
                log.warning("journal cannot be ended", extra={"reason": error.strerror})
            self._cut_off = _NOBODY

    def _tell_unfinished(self) -> None:
        from partage.edges.files.journal import Unfinished, Unreadable, read_journal

        last = read_journal(self.state_dir)
        self._cut_off = frozenset(last.beginning.before) if isinstance(last, Unfinished) else _NOBODY
        if isinstance(last, Unreadable):
            log.warning("journal is of no use", extra={"reason": last.reason})
        elif last is not None:
            log.warning("a change was cut off", extra={"reason": f"{last}; planned anew from what lives now"})

"""What the hardware says: three questions that are asked again and again, and what came of them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field

from partage.agent.options import Intervals
from partage.edges.hardware.port import Hardware
from partage.errors import HardwareError
from partage.model.gpu import Inventory, NoDriver
from partage.model.health import GpuCondition, Xid
from partage.plan.reconcile.known_node import KnownNode, recognise
from partage.values import Frozen

log = logging.getLogger(__name__)


class Observation(Frozen):
    """What came since it was asked last. silent: why nobody can say how the GPUs are, empty where one can."""

    node: KnownNode | None
    fresh: bool
    xids: tuple[Xid, ...]
    conditions: tuple[GpuCondition, ...] | None
    silent: str


class HardwareObserver(Struct):
    """Asks the hardware. Failures are states here: the loop goes on with what it knew.

    ask: asks for a turn. xid_counts: every XID since the start, by GPU (empty: unknown) and code.
    """

    hardware: Hardware
    ask: Callable[[], None]
    intervals: Intervals
    node: KnownNode | None = None
    xid_counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    _fresh: bool = False
    _xids: list[Xid] = field(default_factory=list)
    _conditions: tuple[GpuCondition, ...] | None = None
    _unseen: str = ""
    _unasked: str = ""
    _look: asyncio.Event = field(default_factory=asyncio.Event)
    _check: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def trouble(self) -> str:
        """Why the hardware does not answer at all; empty where it does, be it that there is no driver."""
        return self._unseen

    @property
    def no_driver(self) -> NoDriver | None:
        """Why no GPU can be seen, in the hardware's words."""
        driver = self.node.inventory.driver if self.node else None
        return driver if isinstance(driver, NoDriver) else None

    def take(self) -> Observation:
        """What came since the last call."""
        silent = self._unseen or self._unasked or (self.no_driver.reason if self.no_driver else "")
        sensed = Observation(self.node, self._fresh, tuple(self._xids), self._conditions, silent)
        self._fresh, self._xids, self._conditions = False, [], None
        return sensed

    def look_again(self) -> None:
        """Observe the whole node soon."""
        self._look.set()

    # --- the three questions, each a task ---

    async def observe_forever(self) -> None:
        """The whole node: every observe_s, when something changed, and soon again while it cannot be seen."""
        while True:
            blind = self.trouble or self.no_driver
            await _either(self._look, self.intervals.retry_s if blind else self.intervals.observe_s)
            await self.observe()

    async def observe(self) -> bool:
        """Look once. False: nobody answers."""
        try:
            observed = await self.hardware.observe()
        except HardwareError as error:
            self._note_unseen(str(error))
            return False
        self._note_unseen("")
        self._note_driver(observed)
        node = recognise(self.node, observed)
        if node != self.node:
            self._fresh, self.node = True, node
            self.ask()
        return True

    async def observe_now(self) -> Inventory:
        """Observe, again and again until there is an answer; the next turn takes it for news."""
        while True:
            if await self.observe() and self.node is not None:
                self._fresh = True
                return self.node.inventory
            await asyncio.sleep(self.intervals.retry_s)

    async def conditions_forever(self) -> None:
        """The driver's word on health: every conditions_s, and at once after an XID.

        The first time at once, too: a reset is proven by what was counted before the fault.
        """
        while True:
            await self._ask_conditions()
            self.ask()
            await _either(self._check, self.intervals.conditions_s)

    async def _ask_conditions(self) -> None:
        was_silent = self._unasked
        try:
            self._conditions = await self.hardware.conditions()
            self._unasked = ""
        except HardwareError as error:
            self._unasked = str(error)
        if bool(was_silent) != bool(self._unasked) or self._differs():
            self.look_again()

    def _differs(self) -> bool:
        """Whether the driver now says another thing of who answers than the last look at the node did.

        A lost GPU whose name cannot be read any more has no condition at all.
        """
        if self._conditions is None or self.node is None:
            return False
        said = {condition.gpu for condition in self._conditions if condition.lost is None}
        answering = said & set(self.node.known)
        answered = {gpu.uuid for gpu in self.node.inventory} - set(self.node.lost)
        return answering != answered

    async def events_forever(self) -> None:
        """XIDs and changes, as they come."""
        while True:
            try:
                events = await self.hardware.events(self.intervals.events_s)
            except HardwareError:  # told by the other two questions
                await asyncio.sleep(self.intervals.retry_s)
                continue
            if events.xids:
                self._note_xids(events.xids)
            if events.changed:
                self.look_again()

    def _note_xids(self, xids: tuple[Xid, ...]) -> None:
        for xid in xids:
            log.warning("xid raised", extra={"gpu": xid.gpu, "xid": xid.code, "gi": xid.gi_id})
        self.xid_counts.update((xid.gpu or "", xid.code) for xid in xids)
        self._xids.extend(xids)
        self._check.set()
        self.ask()

    def _note_driver(self, observed: Inventory) -> None:
        """Say so where the driver comes, goes or is another one."""
        driver = observed.driver
        if self.node is not None and driver == self.node.inventory.driver:
            return
        if isinstance(driver, NoDriver):
            gone = {"kind": driver.kind, "reason": driver.reason, "hint": driver.hint or None}
            log.warning("no driver", extra=gone)
        else:
            facts = {
                "version": driver.version,
                "gpus": len(observed.gpus),
                "lost": len(observed.lost) or None,
            }
            log.info("driver works", extra=facts)

    def _note_unseen(self, reason: str) -> None:
        if reason != self._unseen:
            if reason:
                log.warning("hardware does not answer", extra={"reason": reason})
            else:
                log.info("hardware answers again")
            self._unseen = reason
            self.ask()


async def _either(event: asyncio.Event, longest_s: float) -> None:
    """Wait until the event is set, at most so long; it is unset afterwards."""
    try:
        async with asyncio.timeout(longest_s):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()

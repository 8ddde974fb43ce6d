"""Polls the hardware: inventory, health conditions and events."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.options import Intervals
from partage.edges.hardware.port import Hardware
from partage.edges.host.waiting import until_tick
from partage.errors import HardwareError
from partage.model.driver_limit import LimitSetter
from partage.model.gpu import Inventory, NoDriver
from partage.model.health import GpuCondition, Xid
from partage.model.usage_day import GpuSeen
from partage.plan.gpu_health import HealthNews
from partage.plan.reconcile.known_node import KnownNode, with_observed

log = logging.getLogger(__name__)


MOST_ALIKE = 5
"""So many answers about the health in a row ask for no turn, where they are alike and nothing waits."""

XID_LOG_S = 60.0
"""The same XID of the same GPU is logged once in so many seconds: a program that faults in a loop raises
thousands. The metric counts them all."""


class XidLog(Struct):
    """Logs XIDs, repeated ones with their number."""

    clock: Callable[[], float]
    _logged: dict[tuple[str | None, int], tuple[float, int]] = field(default_factory=dict)

    def note(self, xid: Xid) -> None:
        """Log it, or count it for the next line about this GPU and this XID."""
        now_s, key = self.clock(), (xid.gpu, xid.code)
        logged_s, more = self._logged.get(key, (-XID_LOG_S, 0))
        if now_s - logged_s < XID_LOG_S:
            self._logged[key] = logged_s, more + 1
            return
        facts = {"gpu": xid.gpu, "xid": xid.code, "gi": xid.gi_id, "not_logged": more or None}
        log.warning("xid raised", extra=facts)
        self._logged[key] = now_s, 0


class HardwareObserver(Struct):
    """Polls the hardware. After a failure the loop continues with the last known node.

    ask: asks for a turn. restricted_mps, limits_by: as in ``Inventory``; the latter is asked each time.
    xid_counts: XIDs since the start, by GPU (empty: unknown) and code.
    last_xids: the code that came last, by GPU.
    boot_id: of the boot in which the node was last observed, also by an earlier agent; empty if unknown.
    settled: whether a turn would say what the last one said, as long as nothing is new.
    """

    hardware: Hardware
    ask: Callable[[], None]
    intervals: Intervals
    xid_log: XidLog
    restricted_mps: bool = False
    node: KnownNode | None = None
    xid_counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    last_xids: dict[str, int] = field(default_factory=dict)
    boot_id: str = ""
    settled: Callable[[], bool] = lambda: False
    limits_by: Callable[[Inventory], LimitSetter | None] = lambda _: None
    _judged: tuple[GpuCondition, ...] | None = None
    _alike: int = 0
    _fresh: bool = False
    _xids: list[Xid] = field(default_factory=list)
    _conditions: tuple[GpuCondition, ...] | None = None
    _unobserved: str = ""
    _no_conditions: str = ""
    _observe_asked: asyncio.Event = field(default_factory=asyncio.Event)
    _conditions_asked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def trouble(self) -> str:
        """Why the hardware does not answer; empty if it does, also if it answers that there is no driver."""
        return self._unobserved

    @property
    def no_driver(self) -> NoDriver | None:
        """Why there is no driver, as the hardware reports it; None if there is one."""
        driver = self.node.inventory.driver if self.node else None
        return driver if isinstance(driver, NoDriver) else None

    def models(self) -> Iterator[GpuSeen]:
        """The models of the node's GPUs."""
        gpus = self.node.known.values() if self.node else ()
        return (GpuSeen(gpu.product, gpu.memory_bytes) for gpu in gpus)

    def take(self) -> HealthNews:
        """What was observed since the last call."""
        silent = self._unobserved or self._no_conditions or (self.no_driver.reason if self.no_driver else "")
        before, self.boot_id = self.boot_id, (self.node and self.node.inventory.boot_id) or self.boot_id
        news = HealthNews(
            fresh=self._fresh,
            xids=tuple(self._xids),
            conditions=self._conditions,
            silent=silent,
            booted=bool(before) and before != self.boot_id,
        )
        self._fresh, self._xids, self._conditions = False, [], None
        return news

    def observe_soon(self) -> None:
        """Observe the whole node soon."""
        self._observe_asked.set()

    # --- three tasks ---

    async def observe_regularly(self) -> None:
        """Observe the whole node every observe_s, on changes, and every retry_s while it cannot be
        observed."""
        while True:
            unavailable = self.node is None or self.trouble or self.no_driver
            pause_s = self.intervals.retry_s if unavailable else self.intervals.observe_s
            await _either(self._observe_asked, pause_s)
            await self.observe()

    async def observe(self) -> bool:
        """Observe once. False: no answer."""
        try:
            observed = await self._observed()
        except HardwareError as error:
            self._note_unobserved(str(error))
            return False
        self._note_unobserved("")
        self._note_driver(observed)
        node = with_observed(self.node, observed)
        if node != self.node:
            self._fresh, self.node = True, node
            self.ask()
        return True

    async def _observed(self) -> Inventory:
        found = await self.hardware.observe()
        if by := self.limits_by(found):
            found = replace(found, limits_by=by)
        return replace(found, restricted_mps=True) if self.restricted_mps else found

    async def observe_now(self) -> Inventory:
        """Observe until there is an answer; the next turn treats it as fresh."""
        while True:
            if await self.observe() and self.node is not None:
                self._fresh = True
                return self.node.inventory
            await asyncio.sleep(self.intervals.retry_s)

    async def conditions_forever(self) -> None:
        """Ask for health conditions every conditions_s, and at once after an XID.

        Also at once at the start: the counters from before a fault prove a later reset.
        """
        while True:
            await self.ask_conditions()
            await _either(self._conditions_asked, self.intervals.conditions_s)

    async def ask_conditions(self) -> None:
        """Ask once, and for a turn if it has to look at the answer."""
        await self._ask_conditions()
        if self._has_news():
            self._judged, self._alike = self._conditions, 0
            self.ask()
        else:
            self._conditions, self._alike = None, self._alike + 1

    def _has_news(self) -> bool:
        """Whether a turn has to look at the last answer: not at the same one, where nothing waits."""
        alike = self._conditions == self._judged and not self._no_conditions
        return not (alike and self._alike < MOST_ALIKE and self.settled())

    async def _ask_conditions(self) -> None:
        was_silent = self._no_conditions
        try:
            self._conditions = await self.hardware.conditions()
            self._no_conditions = ""
        except HardwareError as error:
            self._no_conditions = str(error)
        if bool(was_silent) != bool(self._no_conditions) or self._differs():
            self.observe_soon()

    def _differs(self) -> bool:
        """Whether other GPUs answer now than in the last observation.

        A lost GPU whose UUID cannot be read has no condition.
        """
        if self._conditions is None or self.node is None:
            return False
        said = {condition.gpu for condition in self._conditions if condition.lost is None}
        answering = said & set(self.node.known)
        answered = {gpu.uuid for gpu in self.node.inventory} - set(self.node.lost)
        return answering != answered

    async def watch_events(self) -> None:
        """Wait for XIDs and changes."""
        while True:
            try:
                events = await self.hardware.events(self.intervals.events_s)
            except HardwareError:  # the other two tasks find out why
                self.ask()
                await asyncio.sleep(self.intervals.retry_s)
                continue
            if events.xids:
                self._note_xids(events.xids)
            if events.changed:
                self.observe_soon()

    def _note_xids(self, xids: tuple[Xid, ...]) -> None:
        for xid in xids:
            self.xid_log.note(xid)
        self.xid_counts.update((xid.gpu or "", xid.code) for xid in xids)
        self.last_xids.update((xid.gpu or "", xid.code) for xid in xids)
        self._xids.extend(xids)
        self._conditions_asked.set()
        self.ask()

    def _note_driver(self, observed: Inventory) -> None:
        """Log when the driver appears, disappears or changes."""
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

    def _note_unobserved(self, reason: str) -> None:
        if reason != self._unobserved:
            if reason:
                log.warning("hardware does not answer", extra={"reason": reason})
            else:
                log.info("hardware answers again")
            self._unobserved = reason
            self.ask()


async def _either(event: asyncio.Event, longest_s: float) -> None:
    """Wait until the event is set, so long at most; it is unset afterwards."""
    await until_tick(longest_s, event)
    event.clear()

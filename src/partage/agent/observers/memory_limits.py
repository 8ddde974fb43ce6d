"""Reads back the driver's memory limits of containers and jobs, and sets lost ones again.

A hook or a plugin sets the limit before the first instruction; what is found missing here is set late, and
said to be late. Between two looks nothing is assumed. Who is limited says a part (``LimitHolders``): that for
the containers of a kubelet is here (``ContainerHolders``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from msgspec import Struct, field

from partage.agent.observers.containers import NodeContainers
from partage.agent.options import Intervals
from partage.agent.status.status import AgentCounts
from partage.agent.supervision import wait_at_most
from partage.edges.hardware.port import Hardware
from partage.errors import HardwareError
from partage.model.driver_limit import NO_CGROUP, LimitAt, SeenLimit
from partage.model.gpu import Inventory
from partage.model.ids import ContainerId, DeviceUuid, cgroup_owner, device_of
from partage.model.share import NodeOffer
from partage.model.step import SetMemoryLimit
from partage.plan.serve.held_limits import (
    counted_devices,
    counted_places,
    held_limits,
    limited_devices,
    to_repair,
    wanted_limits,
)
from partage.plan.serve.ledger_entry import Holder
from partage.units import format_bytes
from partage.values import Frozen

log = logging.getLogger(__name__)


class LimitPlaces(Frozen):
    """Where to look. wanted: the limit that each place has to have, in bytes. others: without one: where the
    kernel counts what is used, which needs no process ids; where it matters whether there is a cgroup.
    """

    wanted: Mapping[LimitAt, int] = field(default_factory=dict)
    others: Collection[LimitAt] = ()


class LimitHolders(Protocol):
    """Whose cgroups are limited on this node."""

    def held(self) -> bool:
        """Whether anybody may be, so that it is worth to look again after a while."""

    async def places(self) -> LimitPlaces:
        """Where to look now."""

    def note(self, seen: Mapping[LimitAt, SeenLimit], late: Collection[LimitAt]) -> None:
        """What was read at these places. late: of which limits were set here."""


class MemoryLimitsObserver(Struct):
    """What was read last. Where nobody is limited, and the kernel counts nothing, it rests.

    seen: by place. late: limits that were set here, not before the first instruction, and whose cgroups are
    still there. failed: limits that could not be set, with the reason.
    """

    hardware: Hardware
    intervals: Intervals
    counts: AgentCounts
    holders: LimitHolders
    seen: Mapping[LimitAt, SeenLimit] = field(default_factory=dict)
    late: frozenset[LimitAt] = frozenset()
    failed: Mapping[LimitAt, str] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def soon(self) -> None:
        """Look soon: a share was given."""
        self._news.set()

    @property
    def used(self) -> Mapping[LimitAt, int]:
        """Bytes of GPUs that are used as they are counted for cgroups: without managed memory."""
        states = ((at, row.state) for at, row in self.seen.items())
        return {
            at: state.used_bytes for at, state in states if state is not None and state.used_bytes is not None
        }

    async def run(self) -> None:
        """Look whenever there is a reason to, and every watch_s while somebody is limited."""
        while True:
            await wait_at_most(self._news, self.intervals.watch_s if self.holders.held() else None)
            self._news.clear()
            await self.look()
            await asyncio.sleep(self.intervals.look_gap_s)

    async def look(self) -> None:
        """One look: read, set what was lost, and say it."""
        places = await self.holders.places()
        asked = places.wanted.keys() | set(places.others)
        # A cgroup is there a moment before its limit: what was not there at the last look is not lost yet.
        there = {at for at, row in self.seen.items() if row.cgroup}
        self.seen = await self._read(asked)
        missing = to_repair(places.wanted, self.seen)
        lost = {at: limit_bytes for at, limit_bytes in missing.items() if at in there}
        if lost:
            await self._repair(lost)
            self.seen = await self._read(asked)
        if missing.keys() - lost.keys():
            self.soon()
        gone = {at for at, row in self.seen.items() if row.why == NO_CGROUP}
        self.late = (self.late & places.wanted.keys()) - gone
        self.failed = {at: why for at, why in self.failed.items() if at in lost}
        self.holders.note(self.seen, self.late)

    async def _read(self, asked: Collection[LimitAt]) -> dict[LimitAt, SeenLimit]:
        if not asked:
            return {}
        try:
            return {row.at: row for row in await self.hardware.limits(sorted(asked))}
        except HardwareError as error:
            return {at: SeenLimit(at, why=str(error)) for at in asked}

    async def _repair(self, lost: Mapping[LimitAt, int]) -> None:
        for at, limit_bytes in sorted(lost.items()):
            who = {"of": cgroup_owner(at.container), "gpu": at.gpu, "limit": format_bytes(limit_bytes)}
            try:
                await self.hardware.perform(SetMemoryLimit(at.gpu, at.container, limit_bytes))
            except HardwareError as error:
                if self.failed.get(at) != str(error):
                    log.warning("memory limit cannot be set", extra={**who, "reason": str(error)})
                self.failed = {**self.failed, at: str(error)}
                self.counts.limits[at.gpu, "failed"] += 1
            else:
                log.warning("memory limit was missing and is set now, late", extra=who)
                self.late = self.late | {at}
                self.counts.limits[at.gpu, "set"] += 1


class ContainerHolders(Struct):
    """The containers that hold limited shares, by the ledger; what was read stands beside its entries.

    Where the kernel counts the memory of cgroups, also those with other shares.
    """

    node: NodeContainers
    _offer: NodeOffer = field(default_factory=dict)
    _limited: frozenset[DeviceUuid] = frozenset()
    _counted: frozenset[DeviceUuid] = frozenset()
    _version: int = -1
    _names: Mapping[ContainerId, Holder] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether shares are limited or counted, held or not."""
        return bool(self._limited or self._counted)

    def update(self, offer: NodeOffer, inventory: Inventory) -> bool:
        """Take what can be held now, and what is held. Whether to look soon: at a new container."""
        devices = limited_devices(offer), counted_devices(offer, inventory)
        self._offer = offer
        news = any(devices) and self.node.ledger.version != self._version
        if not news and devices == (self._limited, self._counted):
            return False
        (self._limited, self._counted), self._version = devices, self.node.ledger.version
        return True

    def held(self) -> bool:
        """See ``LimitHolders``."""
        return any(
            entry.limit is not None or device_of(entry.id) in self._counted
            for entry in self.node.ledger.entries()
        )

    async def places(self) -> LimitPlaces:
        """See ``LimitHolders``."""
        self._names = {}
        if self.any and self.node.ledger.entries():
            self._names = await self.node.names()
        entries = self.node.ledger.entries()
        return LimitPlaces(
            wanted_limits(entries, self._offer, self._names),
            counted_places(entries, self._counted, self._names),
        )

    def note(self, seen: Mapping[LimitAt, SeenLimit], late: Collection[LimitAt]) -> None:
        """See ``LimitHolders``."""
        noted = held_limits(self.node.ledger.entries(), self._offer, self._names, seen, late)
        if self.node.ledger.note_limits(noted):
            self.node.ask()

"""Reads back the driver's memory limits of containers that hold limited shares, and sets lost ones again.

Only where an offer has such shares. Where the kernel counts the memory of cgroups it reads what other
containers use, too: that needs no process ids. A hook sets the limit before a container's first instruction;
what is found missing here is set late, and said to be late. Between two looks nothing is assumed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from msgspec import Struct, field

from partage.agent.observers.containers import NodeContainers
from partage.agent.status.status import AgentCounts
from partage.agent.supervision import wait_at_most
from partage.errors import HardwareError
from partage.model.driver_limit import LimitAt, SeenLimit
from partage.model.gpu import Inventory
from partage.model.ids import ContainerId, DeviceUuid, device_of
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

log = logging.getLogger(__name__)


class MemoryLimitsObserver(Struct):
    """What was read last. Where no share is limited, and the kernel counts nothing, it rests.

    seen: by container and GPU. late: limits that were set here, not by
    the hook, and whose containers still run. failed: limits that could not be set, with the reason.
    """

    node: NodeContainers
    counts: AgentCounts
    seen: Mapping[LimitAt, SeenLimit] = field(default_factory=dict)
    late: frozenset[LimitAt] = frozenset()
    failed: Mapping[LimitAt, str] = field(default_factory=dict)
    _offer: NodeOffer = field(default_factory=dict)
    _limited: frozenset[DeviceUuid] = frozenset()
    _counted: frozenset[DeviceUuid] = frozenset()
    _version: int = -1
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def soon(self) -> None:
        """Look soon: a share was given."""
        if self._limited or self._counted:
            self._news.set()

    def update(self, offer: NodeOffer, inventory: Inventory) -> None:
        """Take what can be held now, and what is held. A new container is looked at soon."""
        devices = limited_devices(offer), counted_devices(offer, inventory)
        self._offer = offer
        news = any(devices) and self.node.ledger.version != self._version
        if news or devices != (self._limited, self._counted):
            (self._limited, self._counted), self._version = devices, self.node.ledger.version
            self._news.set()

    @property
    def used(self) -> Mapping[LimitAt, int]:
        """Bytes that containers use of GPUs as they are counted for cgroups: without managed memory."""
        states = ((at, row.state) for at, row in self.seen.items())
        return {
            at: state.used_bytes for at, state in states if state is not None and state.used_bytes is not None
        }

    async def run(self) -> None:
        """Look whenever there is a reason to, and every watch_s while such a share is held."""
        while True:
            held = any(
                entry.limit is not None or device_of(entry.id) in self._counted
                for entry in self.node.ledger.entries()
            )
            await wait_at_most(self._news, self.node.intervals.watch_s if held else None)
            self._news.clear()
            await self.look()
            await asyncio.sleep(self.node.intervals.look_gap_s)

    async def look(self) -> None:
        """One look: read, set what was lost, and note it beside the entries of the ledger."""
        names: Mapping[ContainerId, Holder] = {}
        if (self._limited or self._counted) and self.node.ledger.entries():
            names = await self.node.names()
        wanted = wanted_limits(self.node.ledger.entries(), self._offer, names)
        asked = wanted.keys() | counted_places(self.node.ledger.entries(), self._counted, names)
        self.seen = await self._read(asked)
        lost = to_repair(wanted, self.seen)
        if lost:
            await self._repair(lost)
            self.seen = await self._read(asked)
        self.late = frozenset(at for at in self.late if at in wanted)
        self.failed = {at: why for at, why in self.failed.items() if at in lost}
        noted = held_limits(self.node.ledger.entries(), self._offer, names, self.seen, self.late)
        if self.node.ledger.note_limits(noted):
            self.node.ask()

    async def _read(self, asked: Collection[LimitAt]) -> dict[LimitAt, SeenLimit]:
        if not asked:
            return {}
        try:
            return {row.at: row for row in await self.node.hardware.limits(sorted(asked))}
        except HardwareError as error:
            return {at: SeenLimit(at, why=str(error)) for at in asked}

    async def _repair(self, lost: Mapping[LimitAt, int]) -> None:
        for at, limit_bytes in sorted(lost.items()):
            who = {"id": at.container[:12], "gpu": at.gpu, "limit": format_bytes(limit_bytes)}
            try:
                await self.node.hardware.perform(SetMemoryLimit(at.gpu, at.container, limit_bytes))
            except HardwareError as error:
                if self.failed.get(at) != str(error):
                    log.warning("memory limit cannot be set", extra={**who, "reason": str(error)})
                self.failed = {**self.failed, at: str(error)}
                self.counts.limits[at.gpu, "failed"] += 1
            else:
                log.warning("memory limit was missing and is set now, late", extra=who)
                self.late = self.late | {at}
                self.counts.limits[at.gpu, "set"] += 1

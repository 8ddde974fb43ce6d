"""Polls PodResources for the holders of shares, and updates the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct, field

from partage.agent.options import Intervals
from partage.agent.waiting import wait_at_most
from partage.edges.kubelet.port import PodResources
from partage.errors import Unreachable
from partage.model.allocation import ContainerHold
from partage.model.ids import DeviceUuid, ResourceName, ShareId, device_of
from partage.plan.serve.ledger import Certainty, Ledger
from partage.values import Frozen

log = logging.getLogger(__name__)


class NodeNames(Frozen):
    """Partage's resource names, and the UUIDs of the node's GPUs and MIG devices."""

    resources: Collection[ResourceName]
    devices: Collection[DeviceUuid]

    def has(self, resource: ResourceName, ids: Iterable[ShareId]) -> bool:
        """Whether a hold is of these resources or devices. Its name may be from an earlier policy or another
        plugin."""
        return resource in self.resources or any(device_of(share) in self.devices for share in ids)


class PodResourcesPoller(Struct):
    """Asks PodResources soon after an Allocate, else regularly; pauses longer after a refusal.

    names: the current names. checkpoint: held ids in the kubelet's checkpoint; None: there is none.
    there: whether there may be a PodResources socket. known: whether the holders are known. trouble: why the
    last request failed. asked_once: set after the first request, also if it failed.
    """

    pod_resources: PodResources
    ledger: Ledger
    clock: Callable[[], float]
    ask: Callable[[], None]
    intervals: Intervals
    names: Callable[[], NodeNames]
    checkpoint: Callable[[], Mapping[ResourceName, Collection[ShareId]] | None]
    there: Callable[[], bool]
    known: bool = False
    trouble: str = ""
    _pause_s: float = 0.0
    _waited: bool = False
    asked_once: asyncio.Event = field(default_factory=asyncio.Event)
    _soon: asyncio.Event = field(default_factory=asyncio.Event)

    def soon(self) -> None:
        """Ask soon: an Allocate was answered, and PodResources will list its pod shortly."""
        if not self.trouble and not self._soon.is_set():
            self._pause_s = self.intervals.holders_first_s
            self._soon.set()

    def waited_for(self, *, waited: bool) -> None:
        """Note whether a GPU waits for a share to be released: then ask more often."""
        if waited and not self._waited and not self.trouble:
            self._soon.set()
        self._waited = waited

    async def ask_holders(self) -> tuple[ContainerHold, ...]:
        """Ask once. Raises Unreachable."""
        asked_s = self.clock()
        try:
            said = await self.pod_resources.held()
        except Unreachable as error:
            self._note(str(error))
            raise
        self._note("")
        before = self.ledger.version
        names = self.names()
        holders = tuple(row for row in said if names.has(row.resource, row.ids))
        self.ledger.observed(holders, asked_s)
        if self.ledger.version != before or not self.known:
            self.known = True
            self.ask()
        return holders

    async def run(self) -> None:
        """Ask regularly."""
        written = self._read_checkpoint()
        while True:
            await self._rest()
            try:
                await self.ask_holders()
            except Unreachable:
                if not self.known and (written or not self.there()):
                    # Without checkpoint and socket the holders can never be known: go on without.
                    self.known = True
                    self.ask()
                self.asked_once.set()
                self._pause_s = min(max(self._pause_s, 0.5) * 2, self.intervals.holders_longest_s)
                continue
            self.asked_once.set()
            unnamed = any(entry.certainty is Certainty.TENTATIVE for entry in self.ledger.entries())
            longest_s = self.intervals.holders_waited_s if self._waited else self.intervals.holders_s
            soon_s = max(self._pause_s, self.intervals.holders_first_s) * 2
            self._pause_s = min(soon_s, longest_s) if unnamed else longest_s

    def _read_checkpoint(self) -> bool:
        """Before the first request: all ids in the kubelet's checkpoint are held.

        PodResources never lists an ordinary init container, and lists a pod only shortly after its
        admission. An agent that starts then would take their shares for free. Returns whether there is a
        checkpoint.
        """
        written = self.checkpoint()
        names, now_s = self.names(), self.clock()
        for resource, ids in (written or {}).items():
            if names.has(resource, ids):
                self.ledger.allocated(resource, sorted(ids), now_s)
        return written is not None

    async def _rest(self) -> None:
        """Pause; an Allocate shortens the pause to holders_first_s, which the kubelet needs."""
        if not await wait_at_most(self._soon, self._pause_s):
            return
        self._soon.clear()
        await asyncio.sleep(self.intervals.holders_first_s)

    def _note(self, trouble: str) -> None:
        if bool(trouble) != bool(self.trouble):
            if trouble:
                log.warning("holders are not known", extra={"reason": trouble})
            else:
                log.info("holders are known")
            self.ask()
        self.trouble = trouble

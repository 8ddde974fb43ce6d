"""Devices that are made on demand: what claims want of their GPUs, and waiting until it is there.

Nothing is made here. What claims have recorded is what the planner wants of such a GPU; the reconciler makes
it, and the loop offers it. So a prepare records what it wants, waits for the offer, and goes on as with any
device. Who gives up, or was killed, wants nothing any more, and the planner takes away what was made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from partage.claims.decide.devices import ClaimDevices
from partage.claims.decide.on_demand import demands_of
from partage.claims.files import MadePlace
from partage.claims.model.grant import ClaimRecord, Granted, GrantedShare
from partage.errors import PartageError
from partage.model.claim import Demands, GpuDemand
from partage.model.gpu import Inventory
from partage.model.layout import LayoutItem
from partage.plan.serve.claim_offer import ClaimOffer
from partage.values import grouped

log = logging.getLogger(__name__)


class PlacesFile(Protocol):
    """Where MIG devices were made, on the disk. It flushes the disk: call it in a thread."""

    def save(self, places: Collection[MadePlace]) -> None:
        """Keep these and no others. Raises HardwareError: then what was there before is there."""


class Making:
    """What is made for the claims of one node.

    longest_s: how long a prepare waits for its devices. places: where MIG devices were made for claims, also
    for those that have ended. given_up: UIDs of claims for which the kubelet does not wait any more.
    """

    def __init__(self, file: PlacesFile, longest_s: float, places: Iterable[MadePlace] = ()) -> None:
        self._file, self._longest_s = file, longest_s
        self.places = frozenset(places)
        self.given_up: set[str] = set()
        self._devices: ClaimDevices | None = None
        self._offer = ClaimOffer()
        self._news = asyncio.Event()

    def demands(self, kept: Iterable[ClaimRecord], boot_id: str) -> Demands:
        """What claims want of GPUs. Records and places of another boot count for nothing."""
        made = grouped(
            (place.gpu, LayoutItem.parse(place.item))
            for place in sorted(self.places)
            if not boot_id or place.boot_id == boot_id
        )
        records = (record for record in kept if not boot_id or record.boot_id == boot_id)
        return demands_of((record.granted for record in records), made)

    def published(self, devices: ClaimDevices, offer: ClaimOffer) -> None:
        """After a turn: this is there, and this is wanted."""
        self._devices, self._offer = devices, offer
        self.wake()

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._news.set()
        self._news = asyncio.Event()

    def gave_up(self, uids: Iterable[str]) -> None:
        """The kubelet does not wait for these claims any more."""
        self.given_up.update(uids)
        self.wake()

    async def news(self) -> None:
        """Return when there is something to look at."""
        await self._news.wait()

    def is_there(self, granted: Granted) -> bool:
        """Whether all devices of a claim are there."""
        return all(self._is_there(share) for share in granted.shares)

    def _is_there(self, share: GrantedShare) -> bool:
        row = self._devices.named(share.device) if self._devices else None
        return row is not None and not row.planned and row.device not in self._offer.closed

    async def note(self, granted: Granted, boot_id: str) -> None:
        """Write down where MIG devices will be made for a claim. Raises HardwareError."""
        new = {MadePlace(share.gpu, share.place, boot_id) for share in granted.shares if share.place}
        if new <= self.places:
            return
        both = self.places | new
        await asyncio.to_thread(self._file.save, both)
        self.places = both

    async def forget_gone(self, kept: Iterable[ClaimRecord], inventory: Inventory) -> None:
        """Drop the places at which there is nothing any more, and that no claim wants."""
        wanted = {(share.gpu, share.place) for record in kept for share in record.shares}
        left = frozenset(
            place
            for place in self.places
            if place.boot_id == inventory.boot_id
            and ((place.gpu, place.item) in wanted or not self._is_gone(place, inventory))
        )
        if left == self.places:
            return
        try:
            await asyncio.to_thread(self._file.save, left)
        except PartageError as error:
            log.warning("places of MIG devices", extra={"reason": str(error)})
        else:
            self.places = left

    def _is_gone(self, place: MadePlace, inventory: Inventory) -> bool:
        """Only where the planner has nothing left to do: what is being made is not there yet."""
        gpu, standing = inventory.gpu(place.gpu), self._offer.on_demand.get(place.gpu)
        if gpu is None or standing is None or not standing.settled:
            return False
        item = LayoutItem.parse(place.item)
        live = [(device.profile, device.placement) for device in gpu.mig_devices]
        live += [(empty.profile, empty.placement) for empty in gpu.empty_instances]
        here = [where.start for profile, where in live if where is not None and profile == str(item.profile)]
        return not gpu.mig_unplaced and item.start not in here

    async def until_there(self, granted: Granted) -> str:
        """Wait for the devices of a claim. Why they are not there, a clause; empty: they are."""
        try:
            async with asyncio.timeout(self._longest_s):
                while not self.is_there(granted):
                    if reason := self._failed(granted.shares):
                        return reason
                    await self._news.wait()
        except TimeoutError:
            return self._slow(granted.shares)
        return ""

    def _failed(self, shares: Sequence[GrantedShare]) -> str:
        for share in shares:
            if self._is_there(share):
                continue
            standing = self._offer.on_demand.get(share.gpu)
            if self._devices is not None and self._devices.named(share.device) is None:
                return f"waits for {share.device}, which is no device for claims any more"
            if standing is not None and standing.failed and _knows(standing.demand, share):
                return f"cannot have {share.device} now: {standing.reason}"
        return ""

    def _slow(self, shares: Sequence[GrantedShare]) -> str:
        missing = next((share for share in shares if not self._is_there(share)), shares[0])
        standing = self._offer.on_demand.get(missing.gpu)
        why = standing.reason if standing and standing.reason else "it is not made yet"
        return f"has waited {self._longest_s:.0f} s for {missing.device}: {why}"


def _knows(demand: GpuDemand, share: GrantedShare) -> bool:
    """Whether the planner knew of a share when it said how the GPU stands."""
    return LayoutItem.parse(share.place) in demand.parts if share.place else demand.whole

"""What the node has to be set to for a claim's shares: set and read back before its containers can begin."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from partage.claims.decide.amounts import slot_of
from partage.claims.decide.devices import ClaimDevices
from partage.claims.model.grant import GrantedShare
from partage.errors import HardwareError, PartageError
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import MpsNamespace, closed_slot
from partage.model.step import SetNamespace
from partage.plan.serve.claim_offer import InForce
from partage.plan.serve.ledger_entry import Hold

log = logging.getLogger(__name__)

SET_S = 15.0
"""How long a prepare waits until a limit or a time slice is in force, in seconds. The kubelet gives up after
45 s, and asks again."""

CLOSE_S = 2.0
"""How long it may take to close what a claim had, in seconds. What fails is closed later."""


class Enforcing:
    """Sets limits by the hardware port; time slices are set by the planner, and waited for here.

    in_force: what the last turn has seen.
    """

    def __init__(self, perform: Callable[[SetNamespace], Awaitable[object]]) -> None:
        self._perform = perform
        self._news = asyncio.Event()
        self.in_force = InForce()

    def seen(self, in_force: InForce) -> None:
        """A turn has seen this."""
        if in_force != self.in_force:
            self.in_force = in_force
            self._news.set()
            self._news = asyncio.Event()

    async def until_news(self, seen: InForce, longest_s: float | None) -> None:
        """Return when a turn has seen something else than this, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while self.in_force is seen:
                    await self._news.wait()

    async def hold(self, shares: Iterable[GrantedShare]) -> None:
        """Return once everything is in force that these shares are promised. Raises HardwareError."""
        for share in shares:
            if share.slot:
                await self._in_time(self._perform(_limits(share)), f"the limits of {share.device}")
            if share.config.interval is not None and share.ids:
                await self._in_time(self._until_sliced(share), f"the time slice of {share.device}")

    async def _in_time(self, work: Awaitable[object], what: str) -> None:
        try:
            async with asyncio.timeout(SET_S):
                await work
        except TimeoutError:
            raise HardwareError(f"{what} could not be set within {SET_S:g} s") from None

    async def _until_sliced(self, share: GrantedShare) -> None:
        """The ledger has what the claim asks for, so the planner sets it."""
        while self.in_force.slices.get(share.gpu) is not share.config.interval:
            if (fixed := self.in_force.fixed_slices.get(share.gpu)) is not None:
                raise HardwareError(f"the time slice of {share.device} cannot be set: {fixed}")
            await self._news.wait()

    async def release(self, shares: Iterable[GrantedShare]) -> None:
        """Close what was theirs. What fails now is closed later: nobody else is given it before it has limits
        of its own."""
        for share in shares:
            if share.slot:
                await self.close(share.gpu, share.uuid, share.slot)

    async def close(self, gpu: GpuUuid, device: DeviceUuid, slot: str) -> None:
        """Let nobody use a slot."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._perform(SetNamespace(gpu, device, closed_slot(slot)))
        except (PartageError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            log.warning("a namespace of a former claim is left open", extra={"reason": reason})

    def amiss(self, shares: Iterable[GrantedShare]) -> tuple[GrantedShare, ...]:
        """Those whose daemon does not have their limits any more: it was started again, and its slots are
        closed. A daemon that does not serve has none to be set."""
        slots = self.in_force.open_slots
        return tuple(
            share for share in shares if share.slot and share.slot not in slots.get(share.uuid, (share.slot,))
        )

    async def mend(
        self, shares: Sequence[GrantedShare], devices: ClaimDevices, others: Collection[Hold]
    ) -> None:
        """Set the limits again that a daemon has lost (until then its clients get next to nothing), and close
        slots of which nobody holds the first unit. After one that fails the rest is for later: prepares wait
        meanwhile.

        shares: of all claims. others: what else is held.
        """
        for share in self.amiss(shares):
            try:
                await self.hold([share])
            except PartageError as error:
                log.warning("the limits of a claim are not in force", extra={"reason": str(error)})
                return
        left_open = self.left_open(shares)
        for row in devices.rows.values() if left_open else ():
            for id_ in row.share_ids if row.in_slots else ():
                slot = slot_of(row, [id_])
                if (row.device, slot) in left_open and (row.resource, id_) not in others:
                    await self.close(row.gpu, row.device, slot)

    def left_open(self, shares: Iterable[GrantedShare]) -> frozenset[tuple[DeviceUuid, str]]:
        """Slots that are open and are of none of these shares."""
        ours = {(share.uuid, share.slot) for share in shares}
        slots = self.in_force.open_slots
        return frozenset((device, slot) for device, names in slots.items() for slot in names) - ours


def _limits(share: GrantedShare) -> SetNamespace:
    """``cores`` 0: none were named, so there is no ceiling."""
    return SetNamespace(
        share.gpu, share.uuid, MpsNamespace(share.slot, share.memory_bytes, share.cores or 100)
    )

"""What is done for claims without the kubelet's asking: what was lost is made anew, and what nobody needs is
taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from partage.claims.agent.enforcing import Enforcing
from partage.claims.agent.holds import ClaimHolds
from partage.claims.agent.making import Making
from partage.claims.agent.ports import ClaimReader
from partage.claims.agent.published import ClaimFiles, PublishedDevices
from partage.claims.agent.taking_back import TakingBack
from partage.claims.model.grant import ClaimState
from partage.errors import Absent, ClusterError
from partage.model.claim import ClaimRef

log = logging.getLogger(__name__)


class ClaimUpkeep:
    """Each call takes the lock of the holds, so that no call of the kubelet is between. prepare: as for the
    kubelet."""

    def __init__(
        self,
        holds: ClaimHolds,
        now: PublishedDevices,
        *,
        back: TakingBack,
        files: ClaimFiles,
        enforcing: Enforcing,
        making: Making,
        reader: ClaimReader,
        prepare: Callable[[Sequence[ClaimRef]], Awaitable[object]],
    ) -> None:
        self._holds, self._now, self._back, self._files = holds, now, back, files
        self._enforcing, self._making = enforcing, making
        self._reader, self._prepare = reader, prepare

    async def roll_back_started(self) -> None:
        """Take back what an agent that was killed had only begun."""
        async with self._holds.turn:
            for record in [*self._holds.kept.values()]:
                if record.state is ClaimState.STARTED:
                    await self._back.at_once(record.claim.uid)

    async def clear_up(self) -> None:
        """Take back what nobody waits for any more, and forget where MIG devices were made that are gone."""
        async with self._holds.turn:
            while self._making.given_up:
                record = self._holds.kept.get(uid := self._making.given_up.pop())
                if record is not None and record.state is ClaimState.STARTED:
                    await self._back.at_once(uid)
            if self._now.terms is not None:
                await self._making.forget_gone(self._holds.kept.values(), self._now.terms.inventory)

    async def mend_limits(self) -> None:
        """Set limits again that an MPS daemon has lost, and close slots that nobody has any more."""
        async with self._holds.turn:
            await self._enforcing.mend(self._holds.shares, self._now.devices, self._holds.of_others())

    @property
    def limits_are_amiss(self) -> bool:
        """Whether there is something for ``mend_limits``, now or when a process has ended."""
        shares = self._holds.shares
        return bool(self._enforcing.amiss(shares) or self._enforcing.left_open(shares))

    async def mend_files(self) -> None:
        """Write CDI files again that somebody has removed."""
        async with self._holds.turn:
            for record in [*self._holds.kept.values()]:
                if record.state is ClaimState.PREPARED:
                    await self._files.mend(record)

    async def forget_gone(self) -> None:
        """Take back claims that do not exist any more and that no container has: nobody else will, if the
        kubelet has lost its record of them."""
        for record in [*self._holds.kept.values(), *self._holds.before_boot.values()]:
            ref = record.claim
            try:
                gone = (await self._reader.claim(ref.namespace, ref.name)).ref.uid != ref.uid
            except Absent:
                gone = True
            except (ClusterError, ValueError):
                continue
            if gone and str(ref) not in self._holds.holders:
                async with self._holds.turn:
                    await self._back.unless_used(ref.uid)

    async def find_again(self, lost: Collection[str]) -> frozenset[str]:
        """Prepare claims anew of which nothing is known any more but that their containers run.

        lost: their UIDs. Returns those that have to wait for the API server. They are found by the names that
        the kubelet says; a claim that it does not name has no container.
        """
        known = {str(hold.claim) for hold in self._holds.kept.values()}
        waiting = False
        for name in self._holds.holders.keys() - known:
            try:
                claim = await self._reader.claim(*name.split("/", 1))
            except Absent:
                continue
            except (ClusterError, ValueError):
                waiting = True
                continue
            if claim.ref.uid in lost:
                log.warning("a claim without a record is prepared anew", extra={"claim": name})
                await self._prepare([claim.ref])
        return frozenset(lost).difference(self._holds.kept) if waiting else frozenset()

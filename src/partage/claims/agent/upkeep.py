"""What is done for claims without the kubelet's asking: what was lost is made anew, and what nobody needs is
taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from partage.claims.agent.taking_back import ClaimWork, TakingBack
from partage.claims.model.grant import ClaimState
from partage.errors import Absent, ClusterError
from partage.model.claim import ClaimRef

log = logging.getLogger(__name__)


class ClaimUpkeep:
    """Each call takes the lock of the holds, so that no call of the kubelet is between. prepare: as for the
    kubelet."""

    def __init__(
        self, work: ClaimWork, back: TakingBack, prepare: Callable[[Sequence[ClaimRef]], Awaitable[object]]
    ) -> None:
        self._work, self._back, self._prepare = work, back, prepare

    async def roll_back_started(self) -> None:
        """Take back what an agent that was killed had only begun."""
        async with self._work.holds.turn:
            for record in [*self._work.holds.kept.values()]:
                if record.state is ClaimState.STARTED:
                    await self._back.at_once(record.claim.uid)

    async def clear_up(self) -> None:
        """Take back what nobody waits for any more, and forget where MIG devices were made that are gone."""
        holds, making = self._work.holds, self._work.making
        async with holds.turn:
            while making.given_up:
                record = holds.kept.get(uid := making.given_up.pop())
                if record is not None and record.state is ClaimState.STARTED:
                    await self._back.at_once(uid)
            if (terms := self._work.now.terms) is not None:
                await making.forget_gone(holds.kept.values(), terms.inventory)

    async def mend_limits(self) -> None:
        """Set limits again that an MPS daemon has lost, and close slots that nobody has any more."""
        holds = self._work.holds
        async with holds.turn:
            await self._work.enforcing.mend(holds.shares, self._work.now.devices, holds.of_others())

    @property
    def limits_are_amiss(self) -> bool:
        """Whether there is something for ``mend_limits``, now or when a process has ended."""
        shares = self._work.holds.shares
        return bool(self._work.enforcing.amiss(shares) or self._work.enforcing.left_open(shares))

    async def mend_files(self) -> None:
        """Write CDI files again that somebody has removed."""
        async with self._work.holds.turn:
            for record in [*self._work.holds.kept.values()]:
                if record.state is ClaimState.PREPARED:
                    await self._work.files.mend(record)

    async def forget_gone(self) -> None:
        """Take back claims that do not exist any more and that no container has: nobody else will, if the
        kubelet has lost its record of them."""
        for record in [*self._work.holds.kept.values(), *self._work.holds.before_boot.values()]:
            ref = record.claim
            try:
                gone = (await self._work.reader.claim(ref.namespace, ref.name)).ref.uid != ref.uid
            except Absent:
                gone = True
            except (ClusterError, ValueError):
                continue
            if gone and str(ref) not in self._work.holds.holders:
                async with self._work.holds.turn:
                    await self._back.unless_used(ref.uid)

    async def find_again(self, lost: Collection[str]) -> frozenset[str]:
        """Prepare claims anew of which nothing is known any more but that their containers run.

        lost: their UIDs. Returns those that have to wait for the API server. They are found by the names that
        the kubelet says; a claim that it does not name has no container.
        """
        known = {str(hold.claim) for hold in self._work.holds.kept.values()}
        waiting = False
        for name in self._work.holds.holders.keys() - known:
            try:
                claim = await self._work.reader.claim(*name.split("/", 1))
            except Absent:
                continue
            except (ClusterError, ValueError):
                waiting = True
                continue
            if claim.ref.uid in lost:
                log.warning("a claim without a record is prepared anew", extra={"claim": name})
                await self._prepare([claim.ref])
        return frozenset(lost).difference(self._work.holds.kept) if waiting else frozenset()

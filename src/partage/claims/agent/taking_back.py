"""Takes claims back: when the kubelet says so and nothing of their pods runs any more, or when a prepare
could not be finished. The CDI file goes first, then the record, then what the claim held is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from partage.claims.agent.ends import ClaimEnds
from partage.claims.agent.enforcing import Enforcing
from partage.claims.agent.files import ClaimFiles
from partage.claims.agent.holds import ClaimHolds
from partage.claims.agent.ports import ClaimRecords
from partage.claims.agent.published import PublishedDevices
from partage.claims.model.steps import ClaimStep, StepTaken
from partage.errors import PartageError
from partage.plan.serve.ledger import Ledger

log = logging.getLogger(__name__)


class TakingBack:
    """Call it with the lock of the holds. ended: told of each claim that has ended. ask: for a turn."""

    def __init__(
        self,
        ledger: Ledger,
        holds: ClaimHolds,
        now: PublishedDevices,
        *,
        records: ClaimRecords,
        files: ClaimFiles,
        enforcing: Enforcing,
        ends: ClaimEnds,
        ended: Callable[[str], None],
        ask: Callable[[], None],
        taken: StepTaken,
    ) -> None:
        self._ledger, self._holds, self._now = ledger, holds, now
        self._records, self._files, self._enforcing, self._ends = records, files, enforcing, ends
        self._ended, self._ask, self._taken = ended, ask, taken

    async def unless_used(self, uid: str) -> str:
        """Why it cannot be taken back: something of its pods still runs; empty: it is taken back.

        A process that does not end for long, as one that hangs in the driver, keeps its shares, and the
        kubelet does not wait any longer.
        """
        record = self._holds.kept.get(uid)
        if record is None or (there := await self._ends.still_there(record)) is None:
            return await self.at_once(uid)
        if not self._ends.is_over(record):
            log.warning(
                "a claim is not taken back",
                extra={"claim": str(record.claim), "reason": there.reason},
            )
            return f"claim {record.claim} is not taken back yet: {there.reason}"
        left = self._ends.ending(record, there.pods, self._holds.since_s[uid])
        reason = await self.at_once(uid, close=not left)
        if not reason:
            self._ledger.restore_ending(left)
            self._ask()
        return reason

    async def at_once(self, uid: str, *, close: bool = True) -> str:
        """Why it cannot be taken back; empty: nothing is left of it, nor of what it was before a reboot.
        close: also what it was allowed."""
        record = self._holds.kept.get(uid) or self._holds.before_boot.get(uid)
        if record is None:
            return ""
        try:
            await self._files.remove(uid)
            await self._taken(ClaimStep.FILE_REMOVED, record.claim)
            await asyncio.to_thread(self._records.remove, uid)
        except PartageError as error:
            return str(error)
        await self._taken(ClaimStep.FORGOTTEN, record.claim)
        self._holds.drop(uid)
        self._ended(uid)
        if close:
            await self._enforcing.release(record.shares)
        if any(share.place or share.device in self._now.devices.places for share in record.shares):
            self._ask()
        log.info("a claim is taken back", extra={"claim": str(record.claim)})
        return ""

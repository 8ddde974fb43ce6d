"""The CDI files of claims, made of what the node has now."""

from __future__ import annotations

import asyncio
import logging

from partage.claims.agent.ports import CdiFiles
from partage.claims.agent.published import PublishedDevices
from partage.claims.decide.cdi import ClaimCdi, claim_cdi
from partage.claims.model.grant import Granted
from partage.claims.model.record import ClaimRecord
from partage.errors import PartageError
from partage.model.share import AllocationRefused

log = logging.getLogger(__name__)


class ClaimFiles:
    """now: what claims can get."""

    def __init__(self, files: CdiFiles, now: PublishedDevices) -> None:
        self._files, self._now = files, now

    def content(self, granted: Granted) -> ClaimCdi:
        """Of the file of a claim. Raises AllocationRefused."""
        now = self._now
        return claim_cdi(granted, now.devices, now.responder, guard=now.guard, limits=now.limits)

    async def write(self, record: ClaimRecord, cdi: ClaimCdi) -> None:
        """record: once this is done. Raises HardwareError."""
        await asyncio.to_thread(self._files.write, record, cdi)

    async def remove(self, uid: str) -> None:
        """Remove the file of a claim, if it is there. Raises HardwareError."""
        await asyncio.to_thread(self._files.remove, uid)

    async def mend(self, record: ClaimRecord) -> None:
        """Write the file of a claim again if somebody has removed it: a container that is started again needs
        it. Without a device of it there is nothing to write, and the containers keep what they have."""
        devices = self._now.devices
        if self._now.terms is None or not all(devices.named(share.device) for share in record.shares):
            return
        try:
            if not await asyncio.to_thread(self._files.has, record.claim.uid):
                await self.write(record, self.content(record.granted))
        except (PartageError, AllocationRefused) as error:
            log.warning(
                "the CDI file of a claim is missing",
                extra={"claim": str(record.claim), "reason": str(error)},
            )

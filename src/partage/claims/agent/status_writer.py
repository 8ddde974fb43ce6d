"""Writes what claims have into their status, after the kubelet has its answer: no pod waits for it."""

from __future__ import annotations

import asyncio
import logging
import time

from partage.claims.decide.status import device_status
from partage.claims.model.record import ClaimRecord
from partage.edges.kube.backoff import Backoff
from partage.edges.kube.objects import second
from partage.edges.kube.resources import ResourceApi
from partage.errors import ClusterError, InputError, Unreachable

log = logging.getLogger(__name__)

MANAGER = "partage"
_MOST_WAITING = 1_000


class ClaimStatusWriter:
    """One task, one claim after the other."""

    def __init__(self, api: ResourceApi, driver: str) -> None:
        self._api, self._driver = api, driver
        self._waiting: asyncio.Queue[ClaimRecord] = asyncio.Queue(_MOST_WAITING)

    def say(self, record: ClaimRecord) -> None:
        """This claim is prepared. With too many waiting, the status of this one is not written."""
        try:
            self._waiting.put_nowait(record)
        except asyncio.QueueFull:
            log.warning("the status of a claim is not written", extra={"claim": record.claim.name})

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff()
        while True:
            record = await self._waiting.get()
            while True:
                if await self._is_written(record):
                    break
                await asyncio.sleep(backoff.pause_s())
            backoff.reset()

    async def _is_written(self, record: ClaimRecord) -> bool:
        """False: it may be possible later."""
        claim, devices = record.claim, device_status(record, self._driver, second(time.time()))
        try:
            await self._api.say_devices(claim.namespace, claim.name, claim.uid, devices, MANAGER)
        except Unreachable:
            return False
        except (ClusterError, InputError) as error:  # the claim is gone, or the right is missing
            log.warning(
                "the status of a claim is not written",
                extra={"claim": f"{claim.namespace}/{claim.name}", "reason": error.problems[0].message},
            )
        return True

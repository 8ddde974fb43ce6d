"""Writes what claims have into their status, after the kubelet has its answer: no pod waits for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from partage.claims.decide.status import device_status
from partage.claims.model.record import ClaimRecord
from partage.edges.kube.connection import Backoff
from partage.edges.kube.objects import second
from partage.edges.kube.resources import ResourceApi
from partage.errors import ClusterError, InputError, Unreachable

log = logging.getLogger(__name__)

MANAGER = "partage"


class ClaimStatusWriter:
    """One task, one claim after the other. quiet: returns when there is time for it."""

    def __init__(self, api: ResourceApi, driver: str, quiet: Callable[[], Awaitable[None]]) -> None:
        self._api, self._driver, self._quiet = api, driver, quiet
        self._said: dict[str, ClaimRecord] = {}
        self._waiting: dict[str, ClaimRecord] = {}
        self._news = asyncio.Event()

    def say(self, now: ClaimRecord, before: ClaimRecord | None = None) -> None:
        """This claim has this now. before: what an agent before has said; then only what is new is said."""
        uid = now.claim.uid
        if before is not None and now == self._said.get(uid, before):
            return
        self._said[uid] = self._waiting[uid] = now
        self._news.set()

    def forget(self, uid: str) -> None:
        """This claim has nothing any more: what was not written of it is not."""
        self._said.pop(uid, None)
        self._waiting.pop(uid, None)

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff()
        while True:
            await self._news.wait()
            self._news.clear()
            await self._quiet()
            while self._waiting:
                uid, record = next(iter(self._waiting.items()))
                if not await self._is_written(record):
                    await asyncio.sleep(backoff.pause_s())
                    continue
                backoff.reset()
                if self._waiting.get(uid) is record:
                    del self._waiting[uid]

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
                extra={"claim": str(claim), "reason": error.problems[0].message},
            )
        return True

"""What no pod waits for is done once the kubelet has been quiet for a moment: turns of the loop, flushes, and
what claims have, written into their status.

These take as long as a prepare: done at once they would delay the next claim of the same pod, or of the next
one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol

from partage.claims.decide.status import device_status
from partage.claims.model.grant import ClaimRecord
from partage.edges.kube.connection import Backoff
from partage.edges.kube.objects import second
from partage.edges.kube.resources import ResourceApi
from partage.errors import ClusterError, InputError, PartageError, Unreachable

log = logging.getLogger(__name__)

QUIET_S, LONGEST_S = 0.05, 1.0
"""How long no call has come or been answered, and how long that is waited for at most, in seconds."""


class Unflushed(Protocol):
    """What was written and may be lost with a loss of power."""

    def flush(self) -> None:
        """Raises HardwareError. It blocks: call it in a thread."""


class Afterwards:
    """Asks for turns of the loop, and flushes what was written. ask: for a turn."""

    def __init__(self, clock: Callable[[], float], ask: Callable[[], None], written: Unflushed) -> None:
        self._clock, self._ask, self._written = clock, ask, written
        self._called_s = -inf
        self._wanted = asyncio.Event()

    def called(self) -> None:
        """The kubelet has called, or has its answer."""
        self._called_s = self._clock()

    def ask(self) -> None:
        """Ask for a turn, later."""
        self._wanted.set()

    async def quiet(self) -> None:
        """Return once the kubelet is quiet, or has not been for long."""
        end_s = self._clock() + LONGEST_S
        while True:
            pause_s = min(self._called_s + QUIET_S, end_s) - self._clock()
            if pause_s <= 0:
                return
            await asyncio.sleep(pause_s)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wanted.wait()
            await self.quiet()
            self._wanted.clear()
            self._ask()
            try:
                await asyncio.to_thread(self._written.flush)
            except PartageError as error:
                log.warning("records of claims", extra={"problem": str(error)})


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

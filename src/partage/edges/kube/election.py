"""One leader among replicas, by a Lease.

Times are those of Kubernetes' own components. A Lease counts as left by what is seen of it on the own clock,
so that clocks need not agree. For a moment two may believe that they lead: what a leader writes is checked by
its resourceVersion.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from partage.edges.host.own_task import bounded, unending
from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.objects import timestamp
from partage.edges.kube.port import Lease
from partage.errors import ClusterError, Conflict

log = logging.getLogger(__name__)

LASTS_S, RENEW_WITHIN_S, RETRY_S = 15, 10.0, 2.0
_CALL_S = 5.0


class Election:
    """holder: who this is, in the Lease. wall: seconds since 1970. clock: monotonic."""

    def __init__(
        self,
        cluster: ApiCluster,
        namespace: str,
        name: str,
        holder: str,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._namespace, self._name, self._holder = cluster, namespace, name, holder
        self._wall, self._clock = wall, clock
        self._seen = ("", 0.0)
        self._renewed_s = float("-inf")
        self._told = ""
        self.leads = False

    async def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do the work while this one leads. Never returns. The work must not end; raises what it raises."""
        task: asyncio.Task[object] | None = None
        try:
            while True:
                self.leads = await self._hold()
                if self.leads and task is None:
                    log.info("leads", extra={"lease": self._name})
                    task = asyncio.create_task(unending("leader", work()))
                elif not self.leads and task is not None:
                    log.warning("leads no longer", extra={"lease": self._name})
                    await _ended(task)
                    task = None
                if task is not None and task.done():
                    task.result()
                await asyncio.sleep(RETRY_S)
        finally:
            if task is not None:
                await _ended(task)
            if self.leads:
                self.leads = False
                await self._leave()

    async def _hold(self) -> bool:
        """Take or renew the Lease if it is free or the own one."""
        began_s = self._clock()
        try:
            async with asyncio.timeout(_CALL_S):
                lease = await self._cluster.lease(self._namespace, self._name)
                if not self._is_free(lease):
                    return False
                await self._cluster.write_lease(self._taken(lease))
        except Conflict:
            return False
        except (ClusterError, TimeoutError) as error:
            if (reason := str(error)) != self._told:
                self._told = reason
                log.warning("lease cannot be renewed", extra={"lease": self._name, "reason": reason})
            return self.leads and self._clock() - self._renewed_s < RENEW_WITHIN_S
        self._renewed_s, self._told = began_s, ""
        return True

    def _is_free(self, lease: Lease) -> bool:
        if lease.holder in ("", self._holder):
            return True
        if lease.version != self._seen[0]:
            self._seen = lease.version, self._clock()
        return self._clock() - self._seen[1] >= (lease.duration_seconds or LASTS_S)

    def _taken(self, lease: Lease) -> Lease:
        return replace(
            lease,
            holder=self._holder,
            duration_seconds=LASTS_S,
            renewed_at=timestamp(self._wall()),
            transitions=lease.transitions + (lease.holder != self._holder),
        )

    async def _leave(self) -> None:
        """The next one need not wait."""
        with contextlib.suppress(ClusterError, TimeoutError):
            lease = await bounded(self._cluster.lease(self._namespace, self._name), _CALL_S)
            if lease.holder == self._holder:
                left = replace(lease, holder="", duration_seconds=0, renewed_at="")
                await bounded(self._cluster.write_lease(left), _CALL_S)


async def _ended(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()

"""The device plugin of one resource. The loop publishes; the kubelet's calls only read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from partage.agent.status.status import RequestCounts
from partage.edges.kubelet.port import DeviceList
from partage.errors import Unreachable
from partage.model.gpu_use import Left
from partage.model.ids import PodUid, ResourceName, ShareId
from partage.model.share import AllocationRefused, ContainerAllocation, ContainerHold, DeviceRow
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.preferred_allocation import PreferredAllocator
from partage.plan.serve.unit_allocation import NoRoom, UnitAllocator
from partage.values import Frozen

log = logging.getLogger(__name__)

PRE_START_S = 5.0
"""Timeout of the PodResources request in PreStartContainer, in seconds. The kubelet gives up after 30 s."""


class ServedResource(Frozen):
    """What one resource serves between two turns.

    rows: for ListAndWatch. awaited: held ids that nobody else may get when their holders end.
    """

    rows: tuple[DeviceRow, ...]
    allocator: PreferredAllocator | UnitAllocator
    responder: AllocateResponder
    awaited: frozenset[ShareId] = frozenset()
    pre_start: bool = False


class PluginHooks(Frozen):
    """What a plugin needs of the rest of the agent.

    holders: asks PodResources. left: asks which processes of pods still run, for a moment; None: no answer.
    allocated: an Allocate was answered. refused: one was not, because no device has the amount of memory
    free. registering: the kubelet may be another one, which has to name the holders again.
    limited: adds to an answer with memory limits what makes the runtime set them; raises AllocationRefused.
    """

    ledger: Ledger
    clock: Callable[[], float]
    holders: Callable[[], Awaitable[Sequence[ContainerHold]]]
    left: Callable[[frozenset[PodUid]], Awaitable[Left | None]]
    allocated: Callable[[], None]
    registering: Callable[[], None]
    refused: Callable[[ResourceName, NoRoom], None]
    limited: Callable[[ContainerAllocation, ResourceName], ContainerAllocation]


class _Free(Struct):
    """What the kubelet can give away, at one version of the ledger. awaited: of these, what nobody else may
    get. largest: as many as one pod may need. Kept up to date with each Allocate, for it takes a millisecond
    to make for 400 shares.
    """

    version: int
    ids: set[ShareId]
    awaited: set[ShareId]
    largest: int


class ResourcePlugin:
    """The ``PluginHandler`` of one resource. Without devices it stays registered, with an empty list."""

    def __init__(self, resource: ResourceName, served: ServedResource, hooks: PluginHooks) -> None:
        self.resource = resource
        self._served = served
        self._hooks = hooks
        self._list = DeviceList(1, served.rows)
        self._listed = frozenset(row.id for row in served.rows)
        self._free: _Free | None = None
        self._news = asyncio.Event()
        self._allocations = self._refusals = 0

    # --- the loop's side ---

    @property
    def served(self) -> ServedResource:
        """What is served now."""
        return self._served

    @property
    def asked(self) -> RequestCounts:
        """What the kubelet has asked until now."""
        return RequestCounts(self._allocations, self._refusals)

    def publish(self, served: ServedResource) -> None:
        """Serve this from now on. The kubelet gets a message only if the rows differ."""
        self._served, self._free = served, None
        if served.rows != self._list.rows:
            self._send(served.rows)

    def resend(self) -> None:
        """Send the same rows once more. The kubelet writes its checkpoint for every list."""
        self._send(self._list.rows)

    def _send(self, rows: tuple[DeviceRow, ...]) -> None:
        self._listed, self._free = frozenset(row.id for row in rows), None
        self._list = DeviceList(self._list.version + 1, rows)
        self._news.set()
        self._news = asyncio.Event()

    # --- the kubelet's side: no waiting, no I/O, but for an id whose holder was not seen to end, and for
    # a set of memory limits that no container of this node has ---

    @property
    def pre_start_required(self) -> bool:
        """Only where something has to be set before a container starts: where it is required, no container
        of this resource starts while the agent is away."""
        return self._served.pre_start

    def devices(self) -> DeviceList:
        """The current list."""
        return self._list

    async def changed(self, seen_version: int) -> None:
        """Wait until the list changes."""
        while self._list.version == seen_version:
            await self._news.wait()

    def preferred(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        """Which ids to take. Ids that the kubelet calls available are not held.

        A refusal fails the pod: it gives back what its init containers had.
        """
        ledger, now_s = self._hooks.ledger, self._hooks.clock()
        ledger.offered_as_free(self.resource, available, now_s, must_include)
        prefer, kept = self._served.allocator.prefer, self._served.awaited.difference(must_include)
        if not kept.isdisjoint(available):
            with contextlib.suppress(AllocationRefused):
                return prefer([share for share in available if share not in kept], must_include, size)
        try:
            return prefer(available, must_include, size)
        except NoRoom as refusal:
            ledger.offered_as_free(self.resource, must_include, now_s)
            self._note_refusal(refusal)
            raise

    async def allocate(self, ids: Sequence[ShareId]) -> ContainerAllocation:
        """The response for a container; noted in the ledger."""
        try:
            if former := self._hooks.ledger.former_pods(self.resource, ids):
                await self._must_have_ended(ids, former)
            now_s = self._hooks.clock()
            self._must_be_served(ids)
            answer = self._served.responder.answer(ids)
            if answer.limits:
                answer = self._hooks.limited(answer, self.resource)
        except AllocationRefused as refusal:
            self._note_refusal(refusal)
            raise
        self._allocations += 1
        log.debug("allocated", extra={"resource": self.resource, "ids": list(ids)})
        free = self._known_free()
        self._hooks.ledger.allocated(self.resource, ids, now_s)
        self._hooks.allocated()
        if free is not None:
            self._keep_awaited(free, ids)
        return answer

    async def _must_have_ended(self, ids: Sequence[ShareId], former: frozenset[PodUid]) -> None:
        """The kubelet gives these ids away, and the end of a holder has not been seen: it may have been
        forgotten while its processes run. Without an answer the kubelet's word counts.
        """
        left, ledger = await self._hooks.left(former), self._hooks.ledger
        now_s = self._hooks.clock()
        if left is None:
            ledger.offered_as_free(self.resource, ids, now_s)
            return
        running = {process.pod for process in left.processes}
        kept = [share for share in ids if running & ledger.former_pods(self.resource, [share])]
        ledger.offered_as_free(self.resource, kept, now_s)
        ledger.looked(former, left.processes)
        if not kept:
            return
        self._send(tuple(replace(row, healthy=False) if row.id in kept else row for row in self._list.rows))
        await asyncio.sleep(0)  # the list goes first: nobody else gets these ids
        raise AllocationRefused(
            f"{kept[0]} is not free: {left.processes[0]} of its former pod {left.processes[0].pod} still "
            f"runs; if it cannot end, partage free {kept[0]} frees the share all the same"
        )

    def _known_free(self) -> _Free | None:
        """What is free before this Allocate; None where nothing has to be kept from others, or all is."""
        if not self._served.awaited:
            return None
        ledger, rows = self._hooks.ledger, self._list.rows
        if self._free is None or self._free.version != ledger.version:
            if not any(row.healthy and row.id in self._served.awaited for row in rows):
                return None
            held = ledger.held()
            ids = held.ids.get(self.resource, frozenset[ShareId]())
            waiting = ids - held.admitted.get(self.resource, frozenset[ShareId]())
            awaited = self._served.awaited - waiting
            healthy = {row.id for row in rows if row.healthy}
            largest = held.largest.get(self.resource, 1)
            self._free = _Free(ledger.version, healthy - ids - awaited, healthy & awaited, largest)
        return self._free

    def _keep_awaited(self, free: _Free, ids: Sequence[ShareId]) -> None:
        """What nobody else may get is listed as unhealthy before the kubelet admits the next pod, where it
        could not avoid it any more (``given_to_nobody_else``). The next turn is later.
        """
        free.ids.difference_update(ids)
        free.awaited.difference_update(ids)  # not before the kubelet has admitted this pod
        free.version = self._hooks.ledger.version
        if free.awaited and len(free.ids) < free.largest:
            awaited = free.awaited
            self._send(
                tuple(replace(row, healthy=False) if row.id in awaited else row for row in self._list.rows)
            )

    def registering(self) -> None:
        """The resource is about to be registered. A kubelet that has just started fails a pod that it admits
        again if one of its ids is unhealthy and its container does not run: what is only not to be given
        on is healthy until PodResources of this kubelet has named its holder.
        """
        self._hooks.ledger.registering(self.resource, self._hooks.clock())
        rows = tuple(
            replace(row, healthy=True) if row.id in self._served.awaited else row for row in self._list.rows
        )
        if rows != self._list.rows:
            self._send(rows)
        self._hooks.registering()

    def _note_refusal(self, refusal: AllocationRefused) -> None:
        """The kubelet fails the pod for it, for good."""
        self._refusals += 1
        log.warning("allocation refused", extra={"resource": self.resource, "reason": str(refusal)})
        if isinstance(refusal, NoRoom):
            self._hooks.refused(self.resource, refusal)

    def _must_be_served(self, ids: Sequence[ShareId]) -> None:
        for share in ids:
            if share not in self._listed:
                raise AllocationRefused(
                    f'invalid allocation request for "{self.resource}": '
                    f"invalid request: unknown device: {share}"
                )

    async def pre_start(self, ids: Sequence[ShareId]) -> None:
        """Ask PodResources which container starts. Never keeps a container from starting.

        Ids that are not listed are none of ours: a held id is listed until it is released.
        """
        asked_s = self._hooks.clock()
        ids = [share for share in ids if share in self._listed]
        if not ids:
            return
        try:
            async with asyncio.timeout(PRE_START_S):
                holders = await self._hooks.holders()
        except (Unreachable, TimeoutError) as error:
            reason = str(error) or "PodResources did not answer in time"
            log.warning("holder not known before start", extra={"resource": self.resource, "reason": reason})
            return
        self._hooks.ledger.proven(self.resource, ids, holders, asked_s)

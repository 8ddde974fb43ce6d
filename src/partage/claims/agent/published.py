"""What claims can get of a node now, on which terms, and their CDI files, which are made of it."""

from __future__ import annotations

import asyncio
import logging

from partage.agent.endpoints.plugin_set import AllocateContext
from partage.claims.agent.ports import CdiFiles
from partage.claims.decide.cdi import ClaimCdi, claim_cdi
from partage.claims.decide.devices import ClaimDevices, claim_devices
from partage.claims.decide.slices import FOREIGN
from partage.claims.model.grant import ClaimRecord, Granted, GrantedShare
from partage.claims.model.names import ClaimNames
from partage.edges.files.catalogue import geometry_of
from partage.edges.kubelet.port import ConditionList
from partage.errors import PartageError
from partage.model.claim import DeviceCondition
from partage.model.share import AllocationRefused, Resource
from partage.plan.offer.guarantees import with_current_guarantees
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.claim_offer import ClaimOffer, Closed
from partage.plan.serve.limit_edits import NO_LIMIT_TERMS, LimitTerms

log = logging.getLogger(__name__)


class PublishedDevices:
    """terms: None: the node has not been observed yet. conditions: the health of all devices of the pool."""

    def __init__(self, names: ClaimNames, node: str) -> None:
        self.terms: AllocateContext | None = None
        self.offer = ClaimOffer()
        self.devices = ClaimDevices(names, node, names.pool(node), {}, {})
        self.conditions = ConditionList(0, ())
        self._changed = asyncio.Event()

    def publish(self, offer: ClaimOffer, terms: AllocateContext) -> bool:
        """What claims can get from now on. False: nothing has changed."""
        if offer == self.offer and terms == self.terms:
            return False
        self.offer, self.terms = offer, terms
        rows = with_current_guarantees(offer.offer, terms.unheld, terms.inventory)
        wanted = {gpu: standing.demand for gpu, standing in offer.on_demand.items()}
        names, node = self.devices.names, self.devices.node
        self.devices = claim_devices(rows, terms.inventory, node, geometry_of, names, on_demand=wanted)
        conditions = tuple(
            DeviceCondition(self.devices.pool, name, closed is None, "" if closed is None else closed.reason)
            for name, row in self.devices.rows.items()
            for closed in [offer.closed.get(row.device)]
            if not row.planned
        )
        if conditions != self.conditions.rows:
            self.conditions = ConditionList(self.conditions.version + 1, conditions)
            self._changed.set()
            self._changed = asyncio.Event()
        return True

    async def changed(self, seen_version: int) -> None:
        """Return when the version of ``conditions`` is no longer seen_version."""
        while self.conditions.version == seen_version:
            await self._changed.wait()

    def closed(self, share: GrantedShare) -> Closed | None:
        """Why nobody gets this now; None: claims do."""
        closed, place = self.offer.closed, self.devices.places.get(share.device)
        if place is None:
            return closed.get(share.uuid)
        return closed.get(share.gpu) or (FOREIGN if place.foreign else None)

    @property
    def guard(self) -> bool:
        """The guard's files are on the node."""
        return self.terms is not None and bool(self.terms.guard_dir)

    @property
    def limits(self) -> LimitTerms:
        """What sets the driver's memory limits."""
        return self.terms.limits if self.terms else NO_LIMIT_TERMS

    def responder(self, resource: Resource) -> AllocateResponder:
        """Answers as the device plugin does."""
        assert self.terms is not None
        return self.terms.responder(resource)


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

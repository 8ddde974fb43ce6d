"""The devices of one node: what the kubelet and the agent decide there, without sockets.

Which ids a pod gets, whether it is refused, and what is listed afterwards is decided by the functions that
the agent calls (``KubeletChoice``, ``Refusals``). What is here is the count of what is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from partage.claims.decide.allocation import grant
from partage.claims.decide.book import ClaimBook, Taking
from partage.claims.decide.classes import chart_classes
from partage.claims.decide.scheduling import Placed, PodClaim, allocated, place
from partage.claims.model.claim import ClaimSpec
from partage.claims.model.grant import Granted, GrantedShare, RefusedClaim
from partage.model.claim import ClaimRef
from partage.model.ids import GPU_CLASS, ResourceName, ShareId
from partage.model.share import AllocationRefused
from partage.plan.serve.unit_allocation import NoRoom, Refusals, RefusedAmounts, one_device_where_needed
from partage.whatif.decide.demand import Demand, NodeOffer

Shares = tuple[tuple[ResourceName, tuple[ShareId, ...]], ...]
"""Names and ids that claims hold."""


class NodeClaims:
    """What claims have of one node. book: of the node while it is empty."""

    def __init__(self, book: ClaimBook) -> None:
        self._empty = self._book = book
        self._classes = chart_classes(book.names)
        self._held: dict[Shares, list[tuple[tuple[Granted, ...], tuple[Taking, ...]]]] = {}
        self._fits: dict[tuple[ClaimSpec, ...], bool] = {}
        self._number = 0

    def fits(self, claims: tuple[ClaimSpec, ...]) -> bool:
        """Whether the scheduler would find devices for them now."""
        if (known := self._fits.get(claims)) is None:
            known = self._fits[claims] = isinstance(place(_named(claims), self._book, self._classes), Placed)
        return known

    def allocate(self, claims: tuple[ClaimSpec, ...]) -> Shares:
        """Give a pod what its claims ask for, all or nothing. Raises AllocationRefused."""
        pod = _named(claims)
        placed = place(pod, self._book, self._classes)
        if not isinstance(placed, Placed) or self._book.served is None:
            raise AllocationRefused("no device has what its claims ask for")
        kept = [granted for pods in self._held.values() for some, _ in pods for granted in some]
        mine: list[Granted] = []
        for claim in pod:
            self._number += 1
            given = [device for device in placed.given if device.claim == claim.name]
            written = allocated(claim, given, self._classes)
            written = replace(written, ref=ClaimRef("trace", claim.name, f"pod{self._number}"))
            answer = grant(written, written.ref, self._book.served, (*kept, *mine))
            if isinstance(answer, RefusedClaim):
                raise AllocationRefused(answer.text)
            mine.append(answer)
        shares = tuple(self._shares(share) for granted in mine for share in granted.shares)
        takings = tuple(
            Taking(device.device.key, device.claim, (), device.amounts) for device in placed.given
        )
        self._held.setdefault(shares, []).append((tuple(mine), takings))
        self._count()
        return shares

    def _shares(self, share: GrantedShare) -> tuple[ResourceName, tuple[ShareId, ...]]:
        """What is made on demand is a part of its GPU, and has the id that is planned for it."""
        served = self._book.served
        row = None if served is None or share.admin_access else served.named(share.device)
        return (GPU_CLASS, row.share_ids) if row is not None and row.planned else (share.resource, share.ids)

    def release(self, shares: Shares) -> None:
        """The pod has ended."""
        self._held[shares].pop()
        if not self._held[shares]:
            del self._held[shares]
        self._count()

    def holds(self, shares: Shares) -> bool:
        """Whether claims hold just these."""
        return shares in self._held

    def _count(self) -> None:
        takings = tuple(taking for pods in self._held.values() for _, some in pods for taking in some)
        self._book = replace(self._empty, takings=takings)
        self._fits.clear()


def _named(claims: Sequence[ClaimSpec]) -> list[PodClaim]:
    return [PodClaim(f"claim-{number}", spec, "trace") for number, spec in enumerate(claims)]


Holding = tuple[tuple[ResourceName, tuple[ShareId, ...]], ...]
"""What one pod holds: resource names and ids."""


class NodeAllocator:
    """free: of each resource, how many the scheduler takes to be free: listed as healthy, and not held.

    held_milli, free_milli: in thousandths of a GPU; ``free_milli`` by resource, listed as healthy or not.
    """

    def __init__(self, offer: NodeOffer) -> None:
        self.offer = offer
        self.claims = NodeClaims(offer.book)
        self._all = {**offer.resources, **offer.of_claims}
        self.held: dict[ResourceName, set[ShareId]] = {name: set() for name in self._all}
        self.free: dict[ResourceName, int] = {name: len(resource.ids) for name, resource in self._all.items()}
        self.free_milli: dict[ResourceName, float] = {
            name: sum(resource.milli_of.values()) for name, resource in self._all.items()
        }
        self.held_milli = 0.0
        self._refusals = Refusals()
        self._refused: Mapping[ResourceName, RefusedAmounts] = {}

    def allocate(self, demand: Demand, now_s: float) -> Holding:
        """Give a container its devices, all or none. Raises AllocationRefused with the agent's words."""
        given: list[tuple[ResourceName, tuple[ShareId, ...]]] = []
        try:
            for name, count in demand:
                ids = self._ids(name, count, now_s)
                given.append((name, ids))
                self._hold(name, ids)
        except AllocationRefused:
            self.release(tuple(given))
            raise
        for name, _ in given:
            self._list(name)
        return tuple(given)

    def allocate_claims(self, claims: tuple[ClaimSpec, ...]) -> Holding:
        """Give a pod what its claims ask for, all or nothing. Raises AllocationRefused."""
        holding = self.claims.allocate(claims)
        for name, ids in holding:
            self._hold(name, ids)
            self._list(name)
        return holding

    def milli(self, holding: Holding) -> float:
        """How much of GPUs these shares are, in thousandths."""
        return sum(self._all[name].milli_of[id_] for name, ids in holding for id_ in ids)

    def _ids(self, name: ResourceName, count: int, now_s: float) -> tuple[ShareId, ...]:
        resource, available = self.offer.resources[name], self._available(name)
        if len(available) < count:
            raise AllocationRefused(f"{count} devices of {name} are asked for, {len(available)} are free")
        try:
            return tuple(resource.choice.shares(available, count))
        except NoRoom as refusal:
            self._refusals.noted(name, refusal.units, now_s, ignored=refusal.ignored)
            self.look(now_s)
            raise

    def _available(self, name: ResourceName) -> list[ShareId]:
        """Free ids that are listed as healthy, in the order of the list."""
        resource, held = self.offer.resources[name], self.held[name]
        if name not in self._refused:
            return [id_ for id_ in resource.ids if id_ not in held]
        rows = one_device_where_needed(resource.rows, held, self._refused[name])
        return [row.id for row in rows if row.healthy and row.id not in held]

    def release(self, holding: Holding) -> None:
        """A pod has ended."""
        if self.claims.holds(holding):
            self.claims.release(holding)
        for name, ids in holding:
            self.held[name].difference_update(ids)
            self._add_milli(name, ids, -1)
            self._list(name)

    def _hold(self, name: ResourceName, ids: tuple[ShareId, ...]) -> None:
        self.held[name].update(ids)
        self._add_milli(name, ids, 1)

    def _add_milli(self, name: ResourceName, ids: tuple[ShareId, ...], sign: int) -> None:
        milli_of = self._all[name].milli_of
        amount = sign * sum(milli_of[id_] for id_ in ids)
        self.held_milli += amount
        self.free_milli[name] -= amount

    def _list(self, name: ResourceName) -> None:
        """Count what is free again."""
        if name in self._refused:
            self.free[name] = len(self._available(name))
        else:
            self.free[name] = len(self._all[name].ids) - len(self.held[name])

    def look(self, now_s: float) -> None:
        """List again: a refusal was noted, or has ended to count."""
        before, self._refused = self._refused, self._refusals.in_force(now_s)
        for name in before.keys() | self._refused.keys():
            self._list(name)

    def due_s(self, now_s: float) -> float | None:
        """When a refusal ends to count next; None: none is in force."""
        return self._refusals.due_s(now_s)

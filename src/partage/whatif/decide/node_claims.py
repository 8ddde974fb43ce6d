"""The claims of pods on one node: chosen as the scheduler does, and answered as the node's agent does."""

from __future__ import annotations

from collections.abc import Sequence

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

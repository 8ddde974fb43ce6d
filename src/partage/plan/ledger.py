"""Who holds which share, and how sure we are. Pure: the agent brings the clock and the observations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from partage.model.answer import HeldBy
from partage.model.ids import ResourceName


class Degree(StrEnum):
    """How sure an entry is.

    tentative: Allocate gave it; the kubelet has not yet said to whom.
    observed:  PodResources names the container.
    proven:    PodResources named it before the container started (PreStartContainer).
    """

    TENTATIVE = "tentative"
    OBSERVED = "observed"
    PROVEN = "proven"


@dataclass(frozen=True, slots=True)
class Holder:
    """A container. Several for one id: ambiguous."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One held id. holders: empty while nobody is named, more than one where the kubelet names several."""

    resource: ResourceName
    id: str
    degree: Degree
    holders: tuple[Holder, ...]
    since_s: float


class Ledger:
    """Share -> container. Changed by what the kubelet says and asks, never by guesses."""

    def allocated(self, resource: ResourceName, ids: Sequence[str], now_s: float) -> None:
        """Allocate gave these ids to somebody."""
        raise NotImplementedError

    def offered_as_free(self, resource: ResourceName, ids: Iterable[str], now_s: float) -> None:
        """The kubelet listed these ids as available: nobody holds them."""
        raise NotImplementedError

    def observed(self, holders: Sequence[HeldBy], asked_s: float) -> None:
        """PodResources answered a question that was asked at asked_s."""
        raise NotImplementedError

    def proven(
        self, resource: ResourceName, ids: Sequence[str], holders: Sequence[HeldBy], now_s: float
    ) -> None:
        """PreStartContainer came for these ids, and PodResources said this."""
        raise NotImplementedError

    def entries(self) -> tuple[Entry, ...]:
        """All held ids, ordered by resource and id."""
        raise NotImplementedError

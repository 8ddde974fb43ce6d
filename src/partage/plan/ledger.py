"""Who holds which share, and how sure we are. Pure: the agent brings the clock and the observations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A container. Several for one id: ambiguous."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One held id.

    holders: who is named, ordered; empty while nobody is, several where the kubelet names several. A tentative
    entry with a holder: the name is one that held the id before it was allocated again, so it may be out of date.
    since_s: when it was allocated, or first seen held.
    """

    resource: ResourceName
    id: str
    degree: Degree
    holders: tuple[Holder, ...]
    since_s: float

    @property
    def holder(self) -> Holder | None:
        """Who holds it, where that is certain: exact or absent, never guessed."""
        return self.holders[0] if len(self.holders) == 1 and self.degree is not Degree.TENTATIVE else None


@dataclass(frozen=True, slots=True)
class Held:
    """Ids held now, by resource; of every GPU."""

    ids: Mapping[ResourceName, frozenset[str]] = field(default_factory=dict)


class Ledger:
    """Share -> container. Changed by what the kubelet says and asks, never by guesses.

    unlisted_grace_s: how long an allocated id that PodResources never names (an ordinary init container, an
    admission under way) counts as held.
    """

    def __init__(self, unlisted_grace_s: float = 120.0) -> None:
        raise NotImplementedError

    @property
    def version(self) -> int:
        """Rises with every change of an entry; equal versions, equal entries."""
        raise NotImplementedError

    def allocated(self, resource: ResourceName, ids: Sequence[str], now_s: float) -> None:
        """Allocate gave these ids to somebody."""
        raise NotImplementedError

    def offered_as_free(
        self, resource: ResourceName, available: Iterable[str], must_include: Iterable[str], now_s: float
    ) -> None:
        """GetPreferredAllocation listed these ids: nobody holds them, save those that must be included."""
        raise NotImplementedError

    def observed(self, holders: Sequence[HeldBy], asked_s: float) -> None:
        """PodResources answered a question that was *asked* at asked_s with all containers that hold our resources."""
        raise NotImplementedError

    def proven(
        self, resource: ResourceName, ids: Sequence[str], holders: Sequence[HeldBy], asked_s: float
    ) -> None:
        """PreStartContainer came for exactly these ids, and PodResources, asked then at asked_s, said this."""
        raise NotImplementedError

    def entries(self) -> tuple[Entry, ...]:
        """All held ids, ordered by resource and id."""
        raise NotImplementedError

    def held(self) -> Held:
        """All held ids, for ``plan.transition``."""
        raise NotImplementedError

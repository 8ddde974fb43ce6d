"""Who holds which share, and how sure we are. Pure: the agent brings the clock and the observations.

What the kubelet says in four ways, and what follows from it (docs/adr/0020):

- Allocate: somebody holds these ids now, and whoever held them before has given them up.
- GetPreferredAllocation: these ids are free.
- PodResources: these containers hold these ids; ordinary init containers are missing, and before Kubernetes
  1.36 containers that ended may still be there.
- PreStartContainer: a container with exactly these ids is about to start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf

from partage.model.allocation import ContainerHold
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

    holders: who is named, ordered; empty while nobody is, several where the kubelet names several. A
    tentative entry with holders: they are named, but were so already before the id was allocated again, so
    they may be out of date.
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


@dataclass(frozen=True, slots=True)
class _Past:
    """Containers that gave an id up at since_s or before, and are still named with it.

    free: the kubelet said that the id is free, and has not allocated it since: every name is out of date.
    """

    holders: frozenset[Holder]
    since_s: float
    free: bool = False


_Names = dict[str, set[Holder]]
_NOBODY: frozenset[Holder] = frozenset()


class Ledger:
    """Share -> container. Changed by what the kubelet says and asks, never by guesses.

    Allocate costs what its own ids cost; an observation costs what all held ids cost.

    unlisted_grace_s: how long an allocated id that PodResources never names (an ordinary init container, an
    admission under way) counts as held.
    """

    def __init__(self, unlisted_grace_s: float = 120.0) -> None:
        self._grace_s = unlisted_grace_s
        self._rows: dict[ResourceName, dict[str, Entry]] = {}
        self._past: dict[ResourceName, dict[str, _Past]] = {}
        self._version = 0
        self._entries: tuple[int, tuple[Entry, ...]] = (0, ())
        self._held: tuple[int, Held] = (0, Held())

    @property
    def version(self) -> int:
        """Rises with every change of an entry; equal versions, equal entries."""
        return self._version

    def allocated(self, resource: ResourceName, ids: Sequence[str], now_s: float) -> None:
        """Allocate gave these ids to somebody: to a new holder, or to the next container of the same pod."""
        for share in ids:
            self._remember(resource, share, _Past(self._give_up(resource, share), now_s))
            self._put(Entry(resource, share, Degree.TENTATIVE, (), now_s))

    def offered_as_free(
        self,
        resource: ResourceName,
        available: Collection[str],
        now_s: float,
        must_include: Iterable[str] = (),
    ) -> None:
        """GetPreferredAllocation listed these ids: nobody holds them, save those that must be included.

        (Those are the ids of an init container of the same pod, to be used once more.) The kubelet admits
        one pod at a time, so an id that is available after its Allocate has really been given up.
        """
        rows = self._rows.get(resource)
        if not rows:
            return
        for share in (rows.keys() & available) - set(must_include):
            self._remember(resource, share, _Past(self._give_up(resource, share), now_s, free=True))
            self._drop(resource, share)

    def observed(self, holders: Sequence[ContainerHold], asked_s: float) -> None:
        """PodResources answered a question that was *asked* at asked_s; holders: all that hold our resources.

        For an id that was allocated or offered as free since, the answer is out of date and says nothing.
        """
        said: dict[ResourceName, _Names] = {}
        for row in holders:
            holder = Holder(row.namespace, row.pod, row.container)
            names = said.setdefault(row.resource, {})
            for share in row.ids:
                names.setdefault(share, set()).add(holder)
        for resource in {*said, *self._rows, *self._past}:
            self._observe(resource, said.get(resource, {}), asked_s)

    def proven(
        self, resource: ResourceName, ids: Sequence[str], holders: Sequence[ContainerHold], asked_s: float
    ) -> None:
        """PreStartContainer came for exactly these ids, and PodResources, asked then at asked_s, said this.

        The container that is named with exactly these ids is the one that starts. Nobody is (an ordinary init
        container), or several are: nothing is proven.
        """
        held_by: dict[Holder, set[str]] = {}
        for row in holders:
            if row.resource == resource:
                held_by.setdefault(Holder(row.namespace, row.pod, row.container), set()).update(row.ids)
        wanted = set(ids)
        former = frozenset[Holder]().union(*(self._former(resource, share) for share in ids))
        starting = [holder for holder, held in held_by.items() if held == wanted and holder not in former]
        for share in ids:
            if self._changed_s(resource, share) > asked_s:
                continue
            named = {holder for holder, held in held_by.items() if share in held}
            if len(starting) == 1:
                self._prove(resource, share, starting[0], named, asked_s)
            elif named:
                self._name(resource, share, named, asked_s)
            elif share not in self._rows.get(resource, {}):
                self._remember(resource, share, _Past(self._former(resource, share), asked_s))
                self._put(Entry(resource, share, Degree.TENTATIVE, (), asked_s))

    def entries(self) -> tuple[Entry, ...]:
        """All held ids, ordered by resource and id."""
        if self._entries[0] != self._version:
            rows = (self._rows[resource] for resource in sorted(self._rows))
            self._entries = (self._version, tuple(row[share] for row in rows for share in sorted(row)))
        return self._entries[1]

    def held(self) -> Held:
        """All held ids, for ``plan.reconcile.transition``."""
        if self._held[0] != self._version:
            ids = {resource: frozenset(rows) for resource, rows in self._rows.items() if rows}
            self._held = (self._version, Held(ids))
        return self._held[1]

    # --- one resource, one id ------------------------------------------------------------------

    def _observe(self, resource: ResourceName, names: _Names, asked_s: float) -> None:
        rows, past = self._rows.get(resource, {}), self._past.get(resource, {})
        news = [
            share
            for share, named in names.items()
            if share in past or share not in rows or not _is_known(rows[share], named)
        ]
        for share in news:
            self._name(resource, share, names[share], asked_s)
        for entry in [row for share, row in self._rows.get(resource, {}).items() if share not in names]:
            if entry.since_s < asked_s and self._is_over(entry, asked_s):
                self._drop(resource, entry.id)
            elif entry.since_s < asked_s and entry.holders:
                self._put(replace(entry, holders=()))
        for share in [share for share, gone in past.items() if share not in names and gone.since_s < asked_s]:
            del past[share]

    def _is_over(self, entry: Entry, asked_s: float) -> bool:
        """Whether an entry that an answer does not name ends: once named, or never named for too long."""
        return entry.degree is not Degree.TENTATIVE or asked_s - entry.since_s >= self._grace_s

    def _name(self, resource: ResourceName, share: str, named: set[Holder], asked_s: float) -> None:
        """An answer names these containers with the id."""
        if self._changed_s(resource, share) >= asked_s:
            return
        entry = self._rows.get(resource, {}).get(share)
        past = self._past.get(resource, {}).get(share)
        if entry is None and past and past.free:
            self._remember(resource, share, replace(past, holders=frozenset(named)))
            return
        former = self._still_named(resource, share, named)
        current = named - former
        if current:
            self._see(entry, resource, share, tuple(sorted(current)), asked_s)
        elif entry and entry.degree is Degree.TENTATIVE:
            self._put(replace(entry, holders=tuple(sorted(former))))
        elif entry:
            self._drop(resource, share)

    def _see(
        self,
        entry: Entry | None,
        resource: ResourceName,
        share: str,
        holders: tuple[Holder, ...],
        asked_s: float,
    ) -> None:
        known = entry is not None and entry.degree is not Degree.TENTATIVE
        if entry and known and entry.holders == holders:
            return
        same = entry is not None and (not known or not set(entry.holders).isdisjoint(holders))
        since_s = entry.since_s if entry and same else asked_s
        self._put(Entry(resource, share, Degree.OBSERVED, holders, since_s))

    def _prove(
        self, resource: ResourceName, share: str, holder: Holder, named: set[Holder], asked_s: float
    ) -> None:
        """``holder`` starts with this id; whoever else is named with it has given it up."""
        entry = self._rows.get(resource, {}).get(share)
        since_s = entry.since_s if entry else asked_s
        self._remember(resource, share, _Past(frozenset(named - {holder}), since_s))
        self._put(Entry(resource, share, Degree.PROVEN, (holder,), since_s))

    def _changed_s(self, resource: ResourceName, share: str) -> float:
        """When the id was last given to somebody or given up; a question asked before that is out of date."""
        entry = self._rows.get(resource, {}).get(share)
        past = self._past.get(resource, {}).get(share)
        return max(entry.since_s if entry else -inf, past.since_s if past else -inf)

    def _former(self, resource: ResourceName, share: str) -> frozenset[Holder]:
        past = self._past.get(resource, {}).get(share)
        return past.holders if past else _NOBODY

    def _still_named(self, resource: ResourceName, share: str, named: set[Holder]) -> frozenset[Holder]:
        """Former holders that are named without a break; the others are forgotten, and would be new ones."""
        past = self._past.get(resource, {}).get(share)
        if past is None:
            return _NOBODY
        still = past.holders & named
        if still != past.holders:
            self._remember(resource, share, replace(past, holders=still))
        return still

    def _remember(self, resource: ResourceName, share: str, past: _Past) -> None:
        if past.holders or past.free:
            self._past.setdefault(resource, {})[share] = past
        else:
            self._past.get(resource, {}).pop(share, None)

    def _give_up(self, resource: ResourceName, share: str) -> frozenset[Holder]:
        """Everybody that has been named with the id until now."""
        entry = self._rows.get(resource, {}).get(share)
        return self._former(resource, share).union(entry.holders if entry else ())

    def _put(self, entry: Entry) -> None:
        rows = self._rows.setdefault(entry.resource, {})
        if rows.get(entry.id) != entry:
            rows[entry.id] = entry
            self._version += 1

    def _drop(self, resource: ResourceName, share: str) -> None:
        rows = self._rows[resource]
        del rows[share]
        if not rows:
            del self._rows[resource]
        self._version += 1


def _is_known(entry: Entry, named: set[Holder]) -> bool:
    """Whether an answer that names these says nothing new: almost always, and so worth a short cut."""
    known = entry.degree is not Degree.TENTATIVE and len(entry.holders) == len(named)
    return known and named.issuperset(entry.holders)

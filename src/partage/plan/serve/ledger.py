"""Which container holds which share, and how certain that is. Pure: the caller passes times and observations.

The kubelet tells it in five ways (docs/adr/0020):

- Allocate: a container holds these ids now; their former holders have released them.
- GetPreferredAllocation: these ids are free.
- PodResources: these containers hold these ids. Ordinary init containers are missing, before Kubernetes
1.36 containers that ended may still be listed, and a kubelet that has just started knows no pods yet.
- PreStartContainer: a container with exactly these ids is about to start.
- Its checkpoint: all ids that pods hold, by UID of the pod. Ids of pods that ended may still be in it.

So an id that PodResources does not name is free only if the same kubelet has named it before, or if the
checkpoint, written after that question, does not have it either.

An id whose holder's pod is known by its UID is *ending* first (``ending_holds``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from msgspec.structs import replace

from partage.model.gpu_use import LeftProcess
from partage.model.ids import PodUid, ResourceName, ShareId
from partage.model.share import CheckpointHolds, ContainerHold
from partage.plan.serve.ending_holds import EndingHolds, FormerNames
from partage.plan.serve.ledger_entry import (
    NAMED,
    Certainty,
    EndingHold,
    HeldIds,
    HeldLimit,
    Hold,
    Holder,
    LedgerEntry,
    held_ids,
)

ADMISSION_S = 5.0
"""An id that Allocate returned so long ago belongs to an admitted pod, also if PodResources never lists it
(an ordinary init container): the kubelet asks for all containers of a pod within milliseconds."""
_Names = dict[ShareId, set[Holder]]


class Ledger:
    """Share -> container. Changed only by what the kubelet reports and asks.

    The cost of Allocate depends on its own ids; the cost of an observation on all held ids.

    unlisted_grace_s: after how long an allocated id that PodResources never lists (an ordinary init
    container, or a pod that was refused in the end) becomes unconfirmed; after ADMISSION_S where a checkpoint
    that was written after its Allocate had it.
    """

    def __init__(self, unlisted_grace_s: float = 120.0) -> None:
        self._grace_s = unlisted_grace_s
        self._rows: dict[ResourceName, dict[ShareId, LedgerEntry]] = {}
        self._former = FormerNames()
        self._pods: dict[Hold, frozenset[PodUid]] = {}
        self._in_checkpoint: set[Hold] = set()
        self._ending = EndingHolds()
        self._claimed: dict[Hold, LedgerEntry] = {}
        self._limits: Mapping[Hold, HeldLimit] = {}
        self._suspected: frozenset[Hold] = frozenset()
        self._observed_s = -inf
        self._version = self._claims_version = 0
        self._entries: tuple[int, tuple[LedgerEntry, ...]] = (0, ())
        self._held: tuple[int, HeldIds] = (0, HeldIds())
        self._unclaimed: tuple[int, tuple[LedgerEntry, ...]] = (0, ())

    @property
    def version(self) -> int:
        """Increases with every change of an entry; equal versions mean equal entries."""
        return self._version + self._claims_version + self._ending.version

    def allocated(self, resource: ResourceName, ids: Sequence[ShareId], now_s: float) -> None:
        """Allocate returned these ids: for a new holder, or for the next container of the same pod."""
        for share in ids:
            self._former.remember(resource, share, self._give_up(resource, share), now_s)
            self._pods.pop((resource, share), None)
            self._in_checkpoint.discard((resource, share))
            self._put(LedgerEntry(resource, share, Certainty.TENTATIVE, (), now_s))

    def restored(self, resource: ResourceName, ids: Iterable[ShareId], now_s: float) -> None:
        """The kubelet's checkpoint has these ids: they are held until their end is proven."""
        for share in set(ids) - self._rows.get(resource, {}).keys():
            self._put(LedgerEntry(resource, share, Certainty.UNCONFIRMED, (), now_s))

    def kubelet_started(self) -> None:
        """The kubelet is another one than before: what it does not name has not ended for that."""
        for resource in [*self._rows]:
            self._confirm_again(resource)

    def claimed(self, now: Sequence[LedgerEntry], before: Sequence[LedgerEntry] = ()) -> None:
        """What a prepared ResourceClaim holds now, in place of what it held before. The kubelet's lists of
        devices do not have these ids. The cost depends on its ids alone."""
        if now == before:
            return
        for entry in before:
            self._claimed.pop(entry.hold, None)
        self._claimed |= {entry.hold: entry for entry in now}
        self._claims_version += 1

    def note_limits(self, limits: Mapping[Hold, HeldLimit]) -> bool:
        """What was read of the driver's limits, in place of what was before. Returns whether it is new."""
        if limits == self._limits:
            return False
        self._limits = limits
        self._version += 1
        return True

    def registering(self, resource: ResourceName, now_s: float) -> None:
        """The resource is about to be registered, perhaps with another kubelet than before: answers to
        questions that were asked earlier do not count any more.
        """
        self._observed_s = max(self._observed_s, now_s)
        self._confirm_again(resource)

    def _confirm_again(self, resource: ResourceName) -> None:
        for entry in [*self._rows.get(resource, {}).values()]:
            certainty = Certainty.UNCONFIRMED if entry.certainty in NAMED else entry.certainty
            self._put(replace(entry, certainty=certainty, unlisted=False))

    def suspect(self, holds: frozenset[Hold]) -> bool:
        """These holds contradict others: perhaps PodResources names a pod that ended. Returns whether there
        are new ones."""
        before, self._suspected = self._suspected, holds
        return not holds <= before

    @property
    def must_check(self) -> frozenset[Hold]:
        """Held ids that have to be compared with the checkpoint: unconfirmed and suspected ones."""
        return frozenset(
            entry.hold
            for rows in self._rows.values()
            for entry in rows.values()
            if entry.certainty is Certainty.UNCONFIRMED or entry.hold in self._suspected
        )

    def checked(self, checkpoint: CheckpointHolds, asked_s: float) -> None:
        """The kubelet wrote this checkpoint after PodResources had answered the question of asked_s.

        With that question the kubelet forgets the pods that ended, if it knows its pods; otherwise the
        checkpoint still has them. So an id that is not in it has ended, whichever pods are named with it.
        """
        for resource, share in self.must_check:
            entry, pods = self._rows[resource][share], checkpoint.get(resource, {}).get(share, frozenset())
            if self._changed_s(resource, share) > asked_s or entry.certainty is Certainty.TENTATIVE:
                continue
            if pods:
                self._put(replace(entry, checkpoint_pods=len(pods)))
                continue
            if entry.certainty is not Certainty.UNCONFIRMED:  # its pods have ended, and are still named
                self._former.remember(resource, share, self._give_up(resource, share), asked_s)
            self._drop(resource, share, asked_s)

    def offered_as_free(
        self,
        resource: ResourceName,
        available: Collection[ShareId],
        now_s: float,
        must_include: Iterable[ShareId] = (),
    ) -> None:
        """GetPreferredAllocation listed these ids: they are free, except those that must be included.

        (Those are the ids of an init container of the same pod, to be used again.) The kubelet admits one
        pod at a time, so an id that is available after its Allocate has been released.
        """
        rows = self._rows.get(resource)
        if not rows:
            return
        for share in (rows.keys() & available) - set(must_include):
            self._former.remember(resource, share, self._give_up(resource, share), now_s, free=True)
            self._drop(resource, share, now_s)

    def observed(self, holders: Sequence[ContainerHold], asked_s: float) -> None:
        """PodResources answered a question that was *asked* at asked_s. holders: all containers with
        Partage's resources.

        For an id that was allocated or reported free since then, the answer is out of date and ignored; so
        is the whole answer if a later one was observed before it.
        """
        if asked_s < self._observed_s:
            return
        self._observed_s = asked_s
        said: dict[ResourceName, _Names] = {}
        for row in holders:
            holder = Holder(row.namespace, row.pod, row.container)
            names = said.setdefault(row.resource, {})
            for share in row.ids:
                names.setdefault(share, set()).add(holder)
        for resource in {*said, *self._rows, *self._former.resources}:
            self._observe(resource, said.get(resource, {}), asked_s)

    def proven(
        self, resource: ResourceName, ids: Sequence[ShareId], holders: Sequence[ContainerHold], asked_s: float
    ) -> None:
        """PreStartContainer came for exactly these ids, and PodResources, asked then at asked_s, returned
        ``holders``.

        The container that is listed with exactly these ids is the one that starts. If there is none (an
        ordinary init container) or more than one, nothing is proven.
        """
        self._observed_s = max(self._observed_s, asked_s)
        held_by: dict[Holder, set[ShareId]] = {}
        for row in holders:
            if row.resource == resource:
                held_by.setdefault(Holder(row.namespace, row.pod, row.container), set()).update(row.ids)
        wanted = set(ids)
        former = frozenset[Holder]().union(*(self._former.holders(resource, share) for share in ids))
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
                self._former.remember(resource, share, self._former.holders(resource, share), asked_s)
                self._put(LedgerEntry(resource, share, Certainty.TENTATIVE, (), asked_s))

    # --- whose processes have to be gone -------------------------------------------------------

    @property
    def lacks_pods(self) -> bool:
        """Whether the checkpoint has to say which pod holds an id."""
        return any(
            entry.certainty is Certainty.TENTATIVE or entry.hold not in self._pods
            for rows in self._rows.values()
            for entry in rows.values()
        )

    def know_pods(self, checkpoint: CheckpointHolds, *, is_newer: bool = False) -> None:
        """The checkpoint as it is now. Of a tentative entry it may still name the former holder: it is asked
        again for that. is_newer: it was written after the last Allocate: what is in it belongs to a pod that
        the kubelet has noted, and will be in all later ones until that pod has ended.
        """
        for resource, rows in self._rows.items():
            by_id = checkpoint.get(resource, {})
            for share, entry in rows.items():
                pods = by_id.get(share)
                if pods and entry.certainty is Certainty.TENTATIVE:
                    self._pods[entry.hold] = pods
                    if is_newer:
                        self._in_checkpoint.add(entry.hold)
                elif pods and entry.hold not in self._pods:
                    self._pods[entry.hold] = pods
                    self._ending.gone(entry.hold, pods)

    @property
    def ending(self) -> tuple[EndingHold, ...]:
        """The holds that are ending."""
        return self._ending.all()

    def restore_ending(self, holds: Iterable[EndingHold]) -> None:
        """Holds that were ending for the agent before. What is held again since is another holder's."""
        self._ending.restore(holds)

    @property
    def ending_pods(self) -> frozenset[PodUid]:
        """The pods of holds that are ending: it has to be looked whether anything of them is left."""
        return self._ending.pods()

    def former_pods(self, resource: ResourceName, ids: Iterable[ShareId]) -> frozenset[PodUid]:
        """The pods of holders of these ids whose end has not been seen."""
        pods: set[PodUid] = set()
        for share in ids:
            hold = resource, share
            pods |= self._pods.get(hold, frozenset()) | self._ending.pods_of(hold)
        return frozenset(pods)

    def looked(self, pods: frozenset[PodUid], left: Collection[LeftProcess]) -> None:
        """It was looked for processes of these pods, and only these are left."""
        self._ending.looked(pods, left)

    def not_looked(self, pods: frozenset[PodUid], reason: str, since_s: float) -> None:
        """Nobody could look for processes of these pods since then: they are waited for."""
        self._ending.not_looked(pods, reason, since_s)

    def by_the_kubelets_word(self, pods: frozenset[PodUid], reason: str, since_s: float) -> None:
        """Nobody can look for processes of these pods: those of which none was seen have ended."""
        self._ending.by_the_kubelets_word(pods, reason, since_s)

    def entries(self) -> tuple[LedgerEntry, ...]:
        """All held ids, ordered by resource and id."""
        if self._entries[0] != self.version:
            found = self._ending.entries() | self._claimed
            found |= {entry.hold: entry for rows in self._rows.values() for entry in rows.values()}
            for hold in self._limits.keys() & found.keys():
                found[hold] = replace(found[hold], limit=self._limits[hold])
            self._entries = (self.version, tuple(found[hold] for hold in sorted(found)))
        return self._entries[1]

    def unclaimed(self) -> tuple[LedgerEntry, ...]:
        """What others than claims hold."""
        version = self._version + self._ending.version
        if self._unclaimed[0] != version:
            rows = {entry.hold: entry for rows in self._rows.values() for entry in rows.values()}
            self._unclaimed = (version, tuple((self._ending.entries() | rows).values()))
        return self._unclaimed[1]

    def held(self) -> HeldIds:
        """All held ids, by resource."""
        if self._held[0] != self.version:
            self._held = (self.version, held_ids(self.entries()))
        return self._held[1]

    # --- one resource, one id ------------------------------------------------------------------

    def _observe(self, resource: ResourceName, names: _Names, asked_s: float) -> None:
        rows = self._rows.get(resource, {})
        news = [
            share
            for share, named in names.items()
            if self._former.find(resource, share) or share not in rows or not _is_known(rows[share], named)
        ]
        for share in news:
            self._name(resource, share, names[share], asked_s)
        for entry in [row for share, row in self._rows.get(resource, {}).items() if share not in names]:
            if entry.since_s < asked_s:
                self._not_named(entry, asked_s)
        self._former.forget_unnamed(resource, names.keys(), asked_s)

    def _not_named(self, entry: LedgerEntry, asked_s: float) -> None:
        """An answer does not list this id."""
        if entry.certainty in NAMED:  # by this kubelet: it has ended
            self._drop(entry.resource, entry.id, asked_s)
        elif entry.certainty is Certainty.TENTATIVE:
            late = asked_s - entry.since_s >= self._grace_s
            unlisted = asked_s - entry.since_s >= ADMISSION_S
            noted = unlisted and entry.hold in self._in_checkpoint
            certainty = Certainty.UNCONFIRMED if late or noted else Certainty.TENTATIVE
            self._put(replace(entry, certainty=certainty, holders=(), unlisted=unlisted))

    def _name(self, resource: ResourceName, share: ShareId, named: set[Holder], asked_s: float) -> None:
        """An answer lists these containers with the id."""
        if self._changed_s(resource, share) >= asked_s:
            return
        entry = self._rows.get(resource, {}).get(share)
        past = self._former.find(resource, share)
        if entry is None and past and past.free:
            self._former.rename(resource, share, frozenset(named))
            return
        former = self._former.still_named(resource, share, named)
        current = named - former
        if current:
            self._see(entry, resource, share, tuple(sorted(current)), asked_s)
        elif entry and entry.certainty in NAMED:
            self._drop(resource, share, asked_s)
        elif entry and entry.certainty is Certainty.TENTATIVE:
            self._put(replace(entry, holders=tuple(sorted(former))))

    def _see(
        self,
        entry: LedgerEntry | None,
        resource: ResourceName,
        share: ShareId,
        holders: tuple[Holder, ...],
        asked_s: float,
    ) -> None:
        if entry and entry.certainty in NAMED and entry.holders == holders:
            return
        since_s = asked_s
        if entry is not None:
            same = not entry.holders or not set(entry.holders).isdisjoint(holders)
            tentative = entry.certainty is Certainty.TENTATIVE
            if same or tentative:
                since_s = entry.since_s
            if tentative or not same:
                self._pods.pop(entry.hold, None)
        self._put(LedgerEntry(resource, share, Certainty.OBSERVED, holders, since_s))

    def _prove(
        self, resource: ResourceName, share: ShareId, holder: Holder, named: set[Holder], asked_s: float
    ) -> None:
        """``holder`` starts with this id; other containers listed with it have released it."""
        entry = self._rows.get(resource, {}).get(share)
        since_s = entry.since_s if entry else asked_s
        self._former.remember(resource, share, frozenset(named - {holder}), since_s)
        self._put(LedgerEntry(resource, share, Certainty.PROVEN, (holder,), since_s))

    def _changed_s(self, resource: ResourceName, share: ShareId) -> float:
        """When the id was last allocated or released; answers to earlier questions are out of date."""
        entry = self._rows.get(resource, {}).get(share)
        given_s = -inf
        if entry is not None and entry.certainty is not Certainty.UNCONFIRMED:
            given_s = entry.since_s
        return max(given_s, self._former.since_s(resource, share))

    def _give_up(self, resource: ResourceName, share: ShareId) -> frozenset[Holder]:
        """All containers listed with the id until now."""
        entry = self._rows.get(resource, {}).get(share)
        return self._former.holders(resource, share).union(entry.holders if entry else ())

    def _put(self, entry: LedgerEntry) -> None:
        rows = self._rows.setdefault(entry.resource, {})
        if rows.get(entry.id) != entry:
            rows[entry.id] = entry
            self._version += 1

    def _drop(self, resource: ResourceName, share: ShareId, now_s: float) -> None:
        """The kubelet has ended this hold. It is ending, where it is known whose processes have to go."""
        rows, hold = self._rows[resource], (resource, share)
        entry = rows.pop(share)
        self._in_checkpoint.discard(hold)
        if pods := self._pods.pop(hold, None):
            self._ending.begin(entry, pods, now_s)
        if not rows:
            del self._rows[resource]
        self._version += 1


def _is_known(entry: LedgerEntry, named: set[Holder]) -> bool:
    """Whether an answer with these names changes nothing. Almost always so, hence this fast path."""
    known = entry.certainty in NAMED and len(entry.holders) == len(named)
    return known and named.issuperset(entry.holders)

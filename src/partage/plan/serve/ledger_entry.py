"""What the ledger says of one device id: who holds it, and how certain that is; and the held ids of a node,
as offers and lists need them. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import field

from partage.model.gpu_use import LeftProcess
from partage.model.ids import PodUid, ResourceName, ShareId
from partage.model.policy import WatchAction
from partage.model.strategy import Interval
from partage.values import Frozen


class Certainty(StrEnum):
    """How certain an entry is.

    tentative: Allocate returned it; the kubelet has not yet named the container.
    observed:  PodResources names the container.
    proven:    PodResources named it before the container started (PreStartContainer).
    unconfirmed: held according to an earlier answer or to the checkpoint, but PodResources does not name it
        now. Its end is not proven.
    ending: the kubelet names nobody any more. Whether a process of the former holder is left is not known
        yet, or one is: ``LedgerEntry.left``.
    claimed: a prepared ResourceClaim holds it, until the kubelet says that no pod needs the claim any more.
    """

    TENTATIVE = "tentative"
    OBSERVED = "observed"
    PROVEN = "proven"
    UNCONFIRMED = "unconfirmed"
    ENDING = "ending"
    CLAIMED = "claimed"


NAMED = (Certainty.OBSERVED, Certainty.PROVEN)
"""PodResources named a holder, and the same kubelet still runs."""


class Holder(Frozen, order=True):
    """A container. If an id has several, it is ambiguous."""

    namespace: str
    pod: str
    container: str


Hold = tuple[ResourceName, ShareId]
"""One held id, and the resource under which it was allocated."""


class HeldLimit(Frozen):
    """The driver's memory limit of the container that holds a share, on the GPU of that share.

    limit_bytes: what it has to be, the sum of the container's shares there. seen_bytes: what was read; None:
    none was. late: Partage set it after the container had begun. reason: why it is not in force, a clause;
    empty if it is. shared_by: how many containers have this limit for the same shares: each of them.
    """

    limit_bytes: int
    seen_bytes: int | None
    late: bool = False
    reason: str = ""
    shared_by: int = 1

    @property
    def in_force(self) -> bool:
        """The driver was seen to hold all who have the shares to no more than them."""
        return self.seen_bytes is not None and not self.reason


class LedgerEntry(Frozen):
    """One held id.

    holders: the named containers, ordered; empty if none is named yet, several if the kubelet names
    several, or if they have one claim. Holders of a tentative entry were named before the id was allocated
    again, so they may be out of date.
    since_s: when it was allocated, or first observed as held.
    checkpoint_pods: how many pods hold it by the kubelet's checkpoint; 0: not compared.
    unlisted: the running kubelet allocated it some time ago, and PodResources does not list it.
    ended_s: since when it is ending, former_pods: the pods whose processes have not been seen to be gone;
    left: what was seen of them. unseen: why nobody can look for them now, and unseen_s since when; empty and
    None if somebody can. All are empty and None if it is not ending.
    claim: the ResourceClaim that holds it, ``namespace/name``; empty: none does. watch, interval: what it
    asks for in place of the policy's; None: nothing.
    limit: what was seen of the driver's limit of its container; None: it has none.
    """

    resource: ResourceName
    id: ShareId
    certainty: Certainty
    holders: tuple[Holder, ...]
    since_s: float
    checkpoint_pods: int = 0
    unlisted: bool = False
    ended_s: float | None = None
    left: tuple[LeftProcess, ...] = ()
    former_pods: tuple[PodUid, ...] = ()
    unseen: str = ""
    unseen_s: float | None = None
    claim: str = ""
    watch: WatchAction | None = None
    interval: Interval | None = None
    limit: HeldLimit | None = None

    @property
    def hold(self) -> Hold:
        """Resource and id."""
        return self.resource, self.id

    @property
    def admitted(self) -> bool:
        """The running kubelet has admitted its pod, or forgotten it: the health of the id fails no pod."""
        return self.certainty in (*NAMED, Certainty.ENDING) or self.unlisted

    @property
    def pods(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of each named pod."""
        return frozenset((holder.namespace, holder.pod) for holder in self.holders)

    @property
    def known_holders(self) -> tuple[Holder, ...]:
        """The containers that hold it, if that is certain; several only of a claim."""
        if self.certainty is Certainty.CLAIMED:
            return self.holders
        return (self.holder,) if self.holder else ()

    @property
    def holder(self) -> Holder | None:
        """The container that holds it, if that is certain; else None."""
        return (
            self.holders[0] if len(self.holders) == 1 and self.certainty is not Certainty.TENTATIVE else None
        )


class EndingHold(Frozen):
    """A hold that the kubelet has ended. pods: those whose processes have not been seen to be gone."""

    entry: LedgerEntry
    pods: frozenset[PodUid]


class HeldIds(Frozen):
    """Ids held now, by resource, for all GPUs.

    admitted: those whose pod the running kubelet has admitted. largest: how many ids of a resource one pod
    holds at most. left: those that no container holds, only processes that are left of former holders.
    """

    ids: Mapping[ResourceName, frozenset[ShareId]] = field(default_factory=dict)
    admitted: Mapping[ResourceName, frozenset[ShareId]] = field(default_factory=dict)
    largest: Mapping[ResourceName, int] = field(default_factory=dict)
    left: Mapping[ResourceName, frozenset[ShareId]] = field(default_factory=dict)


def held_ids(entries: Iterable[LedgerEntry]) -> HeldIds:
    """The ids of these entries."""
    ids: dict[ResourceName, set[ShareId]] = defaultdict(set)
    admitted: dict[ResourceName, set[ShareId]] = defaultdict(set)
    left: dict[ResourceName, set[ShareId]] = defaultdict(set)
    pods: dict[ResourceName, Counter[tuple[str, str]]] = defaultdict(Counter)
    for entry in entries:
        resource = entry.resource
        ids[resource].add(entry.id)
        if entry.admitted:
            admitted[resource].add(entry.id)
        if entry.left:
            left[resource].add(entry.id)
        if entry.certainty is not Certainty.ENDING:
            counts = pods[resource]
            for pod in entry.pods if entry.holders else ():
                counts[pod] += 1
    largest = {resource: max(counts.values(), default=1) for resource, counts in pods.items()}
    return HeldIds(_frozen(ids), _frozen(admitted), largest, _frozen(left))


def _frozen(ids: Mapping[ResourceName, set[ShareId]]) -> dict[ResourceName, frozenset[ShareId]]:
    return {resource: frozenset(some) for resource, some in ids.items()}

"""What is left of former holders. Holds that the kubelet has ended and whose pods may still have processes
(docs/adr/0125); containers that have given an id up and that PodResources may still list with it. Pure.

The kubelet forgets a pod that is deleted by force while its processes run. So a hold is *ending* first, until
somebody has looked and has found no process of its pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from msgspec.structs import replace

from partage.model.gpu_use import LeftProcess
from partage.model.ids import PodUid, ResourceName, ShareId
from partage.plan.serve.ledger_entry import Certainty, EndingHold, Hold, Holder, LedgerEntry
from partage.values import Frozen, grouped

_NOBODY: frozenset[Holder] = frozenset()


class _Former(Frozen):
    """Containers that released an id at since_s or before and are still listed with it.

    free: the kubelet reported the id as free and has not allocated it since: every name is out of date.
    """

    holders: frozenset[Holder]
    since_s: float
    free: bool = False


class FormerNames:
    """The former names of each id, by resource."""

    def __init__(self) -> None:
        self._by_id: dict[ResourceName, dict[ShareId, _Former]] = {}

    @property
    def resources(self) -> Collection[ResourceName]:
        """Those with an id that has former names."""
        return self._by_id.keys()

    def find(self, resource: ResourceName, share: ShareId) -> _Former | None:
        """The former names of one id."""
        return self._by_id.get(resource, {}).get(share)

    def holders(self, resource: ResourceName, share: ShareId) -> frozenset[Holder]:
        """The containers that are listed with an id and have given it up."""
        found = self.find(resource, share)
        return found.holders if found else _NOBODY

    def since_s(self, resource: ResourceName, share: ShareId) -> float:
        """When the id was given up; minus infinity if nobody is known who has."""
        found = self.find(resource, share)
        return found.since_s if found else -inf

    def remember(
        self,
        resource: ResourceName,
        share: ShareId,
        holders: frozenset[Holder],
        since_s: float,
        *,
        free: bool = False,
    ) -> None:
        """In place of those of before."""
        self._put(resource, share, _Former(holders, since_s, free))

    def rename(self, resource: ResourceName, share: ShareId, holders: frozenset[Holder]) -> None:
        """Of an id that has former names: these are all. Raises KeyError for another one."""
        self._put(resource, share, replace(self._by_id[resource][share], holders=holders))

    def still_named(self, resource: ResourceName, share: ShareId, named: set[Holder]) -> frozenset[Holder]:
        """Those that have been listed ever since; others are forgotten and would count as new."""
        found = self.find(resource, share)
        if found is None:
            return _NOBODY
        still = found.holders & named
        if still != found.holders:
            self.rename(resource, share, still)
        return still

    def forget_unnamed(self, resource: ResourceName, named: Collection[ShareId], asked_s: float) -> None:
        """An answer to a question of asked_s lists these ids of the resource, and nobody with others."""
        by_id = self._by_id.get(resource, {})
        for share in [share for share, one in by_id.items() if share not in named and one.since_s < asked_s]:
            del by_id[share]

    def _put(self, resource: ResourceName, share: ShareId, former: _Former) -> None:
        if former.holders or former.free:
            self._by_id.setdefault(resource, {})[share] = former
        else:
            self._by_id.get(resource, {}).pop(share, None)


class EndingHolds:
    """The holds that are ending, by hold. version: increases with every change."""

    def __init__(self) -> None:
        self._by_hold: dict[Hold, EndingHold] = {}
        self.version = 0

    def all(self) -> tuple[EndingHold, ...]:
        """All of them."""
        return tuple(self._by_hold.values())

    def entries(self) -> dict[Hold, LedgerEntry]:
        """What the ledger says of them."""
        return {
            hold: replace(ending.entry, former_pods=tuple(sorted(ending.pods)))
            for hold, ending in self._by_hold.items()
        }

    def pods(self) -> frozenset[PodUid]:
        """The pods of which it has to be looked whether anything is left."""
        return frozenset().union(*(hold.pods for hold in self._by_hold.values()))

    def pods_of(self, hold: Hold) -> frozenset[PodUid]:
        """Those of one hold."""
        return self._by_hold[hold].pods if hold in self._by_hold else frozenset()

    def begin(self, entry: LedgerEntry, pods: frozenset[PodUid], now_s: float) -> None:
        """The kubelet has ended this hold, which these pods had."""
        names = () if entry.certainty is Certainty.TENTATIVE else entry.holders
        ending = LedgerEntry(entry.resource, entry.id, Certainty.ENDING, names, entry.since_s, ended_s=now_s)
        self._put(entry.hold, EndingHold(ending, self.pods_of(entry.hold) | pods))

    def restore(self, holds: Iterable[EndingHold]) -> None:
        """Holds that were ending for the agent before."""
        for hold in holds:
            self._put(hold.entry.hold, hold)

    def looked(self, pods: frozenset[PodUid], left: Collection[LeftProcess]) -> None:
        """It was looked for processes of these pods, and only these are left."""
        by_pod = grouped((process.pod, process) for process in left)
        gone = pods - by_pod.keys()
        for hold, ending in list(self._by_hold.items()):
            self.gone(hold, gone)
            if seen := ending.pods & pods - gone:
                processes = tuple(process for pod in sorted(seen) for process in by_pod[pod])
                entry = replace(ending.entry, left=processes, unseen="", unseen_s=None)
                self._put(hold, EndingHold(entry, ending.pods - gone))

    def not_looked(self, pods: frozenset[PodUid], reason: str, since_s: float) -> None:
        """Nobody could look for processes of these pods, since then or longer: they are waited for."""
        for hold, ending in list(self._by_hold.items()):
            if ending.pods & pods:
                known_s = ending.entry.unseen_s
                entry = replace(ending.entry, unseen=reason, unseen_s=since_s if known_s is None else known_s)
                self._put(hold, EndingHold(entry, ending.pods))

    def by_the_kubelets_word(self, pods: frozenset[PodUid], reason: str, since_s: float) -> None:
        """Nobody can look for processes of these pods: those of which none was seen have ended."""
        seen = frozenset(process.pod for hold in self._by_hold.values() for process in hold.entry.left)
        self.looked(pods - seen, ())
        self.not_looked(pods & seen, reason, since_s)

    def gone(self, hold: Hold, pods: frozenset[PodUid]) -> None:
        """Nothing of these pods has to be gone before this hold has ended."""
        ending = self._by_hold.get(hold)
        if ending is None:
            return
        if ending.pods <= pods:
            del self._by_hold[hold]
            self.version += 1
        else:
            self._put(hold, EndingHold(ending.entry, ending.pods - pods))

    def _put(self, hold: Hold, ending: EndingHold) -> None:
        if self._by_hold.get(hold) != ending:
            self._by_hold[hold] = ending
            self.version += 1

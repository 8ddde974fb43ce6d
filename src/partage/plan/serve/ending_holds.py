"""Holds that the kubelet has ended, and whose pods may still have processes (docs/adr/0125). Pure.

The kubelet forgets a pod that is deleted by force while its processes run. So a hold is *ending* first,
until somebody has looked and has found no process of its pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from partage.model.ids import PodUid
from partage.model.process import LeftProcess
from partage.plan.serve.ledger_entry import Certainty, EndingHold, Hold, LedgerEntry


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
        return frozenset().union(*(one.pods for one in self._by_hold.values()))

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
        for one in holds:
            self._put(one.entry.hold, one)

    def looked(self, pods: frozenset[PodUid], left: Collection[LeftProcess]) -> None:
        """It was looked for processes of these pods, and only these are left."""
        by_pod: dict[PodUid, list[LeftProcess]] = {}
        for process in left:
            by_pod.setdefault(process.pod, []).append(process)
        gone = pods - by_pod.keys()
        for hold, ending in list(self._by_hold.items()):
            self.gone(hold, gone)
            if hold in self._by_hold and (seen := ending.pods & pods - gone):
                found = tuple(process for pod in sorted(seen) for process in by_pod[pod])
                entry = replace(ending.entry, left=found, unseen="", unseen_s=None)
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
        seen = frozenset(process.pod for one in self._by_hold.values() for process in one.entry.left)
        self.looked(pods - seen, ())
        self.not_looked(pods & seen, reason, since_s)

    def gone(self, hold: Hold, pods: frozenset[PodUid]) -> None:
        """Nothing of these pods has to be gone before this hold has ended."""
        ending = self._by_hold.get(hold)
        if ending is None or not ending.pods & pods:
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

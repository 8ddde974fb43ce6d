"""What the claims of a node hold: their records by UID, and the ledger's entries that follow from them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from partage.claims.model.grant import ClaimRecord, ClaimState, Granted, GrantedShare, by_boot
from partage.model.claim import ClaimHold, ClaimRef
from partage.model.ids import GpuUuid
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import Certainty, Hold, Holder, LedgerEntry
from partage.values import grouped

_Basis = tuple[tuple[GrantedShare, ...], tuple[Holder, ...], float]
"""What the entries of a claim are made of: its shares, its holders, and since when."""


class ClaimHolds:
    """kept: what is recorded of each claim. before_boot: of those that were prepared before the last boot,
    and hold nothing. holders: by name of a claim, ``team/part``, the containers that the kubelet names.
    since_s: when each claim began to hold. turn: held by whoever changes what claims have, one at a time.

    The cost of a change depends on its claim alone, not on how many others there are. (``kept`` is copied,
    for it is read on other threads: 10 microseconds for a thousand.)
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Callable[[], float],
        ask: Callable[[], None],
        kept: Iterable[ClaimRecord],
    ) -> None:
        """ask: for a turn of the loop, where the ledger changes."""
        self._ledger, self._clock, self._ask = ledger, clock, ask
        self.turn = asyncio.Lock()
        self.kept: Mapping[str, ClaimRecord] = {record.claim.uid: record for record in kept}
        self.before_boot: dict[str, ClaimRecord] = {}
        self.holders: Mapping[str, tuple[Holder, ...]] = {}
        self.since_s = dict.fromkeys(self.kept, clock())
        self._noted: dict[str, tuple[_Basis, tuple[LedgerEntry, ...]]] = {}
        self._on_gpu: dict[GpuUuid, dict[str, Granted]] = defaultdict(dict)
        self._others: tuple[tuple[LedgerEntry, ...], Mapping[Hold, str]] = ((), {})
        self._note(self.kept)

    def booted(self, boot_id: str) -> None:
        """The node runs since this boot: claims that were prepared before it hold nothing. The kubelet asks
        for them again."""
        before = self.kept
        self.kept, self.before_boot = by_boot(before.values(), boot_id)
        self._note(before)

    def seen(self, holds: Sequence[ClaimHold]) -> None:
        """The kubelet names these containers with claims."""
        holders = grouped((hold.claim, Holder(hold.namespace, hold.pod, hold.container)) for hold in holds)
        self.holders = {claim: tuple(sorted(set(some))) for claim, some in holders.items()}
        self._note(self.kept)

    def put(self, record: ClaimRecord) -> None:
        """The claim holds the shares of this record from now on."""
        uid = record.claim.uid
        self.kept = {**self.kept, uid: record}
        self.since_s.setdefault(uid, self._clock())
        self._note([uid])

    def put_back(self, uid: str, record: ClaimRecord | None) -> None:
        """A claim holds again what it held before; None: nothing."""
        if record is not None:
            self.put(record)
            return
        kept = {**self.kept}
        kept.pop(uid, None)
        self.kept = kept
        self.since_s.pop(uid, None)
        self._note([uid])

    def drop(self, uid: str) -> None:
        """The claim holds nothing any more, and nothing is known of it."""
        self.put_back(uid, None)
        self.before_boot.pop(uid, None)

    def _note(self, uids: Iterable[str]) -> None:
        """Tell the ledger what these claims hold, and ask for a turn if that is something else now."""
        version = self._ledger.version
        for uid in uids:
            record, (was, before) = self.kept.get(uid), self._noted.pop(uid, (None, ()))
            if was is not None:
                for gpu in {share.gpu for share in was[0]}:
                    del self._on_gpu[gpu][uid]
            if record is None:
                self._ledger.claimed((), before)
                continue
            basis = record.shares, self.holders.get(str(record.claim), ()), self.since_s[uid]
            entries = before if was == basis else _entries(record.claim, *basis)
            self._ledger.claimed(entries, before)
            self._noted[uid] = basis, entries
            for gpu in {share.gpu for share in record.shares}:
                self._on_gpu[gpu][uid] = record.granted
        if self._ledger.version != version:
            self._ask()

    def is_prepared(self, uid: str) -> bool:
        """Whether the kubelet has, or can have, its answer."""
        record = self.kept.get(uid)
        return record is not None and record.state is ClaimState.PREPARED

    @property
    def shares(self) -> tuple[GrantedShare, ...]:
        """Of all claims."""
        return tuple(share for record in self.kept.values() for share in record.shares)

    def on(self, gpus: Iterable[GpuUuid]) -> tuple[Granted, ...]:
        """What claims have that have something of these GPUs."""
        return tuple({uid: granted for gpu in gpus for uid, granted in self._on_gpu[gpu].items()}.values())

    def of_others(self) -> Mapping[Hold, str]:
        """What others than claims hold, and who."""
        entries = self._ledger.unclaimed()
        if entries is not self._others[0]:
            self._others = entries, {entry.hold: _who(entry) for entry in entries}
        return self._others[1]


def _entries(
    claim: ClaimRef, shares: Sequence[GrantedShare], holders: tuple[Holder, ...], since_s: float
) -> tuple[LedgerEntry, ...]:
    return tuple(
        LedgerEntry(
            share.resource,
            id_,
            Certainty.CLAIMED,
            holders,
            since_s,
            claim=str(claim),
            watch=share.config.watch,
            interval=share.config.interval,
        )
        for share in shares
        for id_ in share.ids
    )


def _who(entry: LedgerEntry) -> str:
    """Who holds it, who is no claim."""
    named = " and ".join(f"pod {namespace}/{pod}" for namespace, pod in sorted(entry.pods))
    if entry.left:
        return f"{entry.left[0]} of {named or 'a pod'}, which the kubelet has forgotten"
    return named or "a pod that is not named yet"

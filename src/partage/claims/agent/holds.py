"""What the claims of a node hold: their records by UID, and the ledger's entries that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from partage.claims.model.grant import GrantedShare
from partage.claims.model.record import ClaimRecord, ClaimState, by_boot
from partage.model.claim import ClaimHold, ClaimRef
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import Certainty, Hold, Holder, LedgerEntry


class ClaimHolds:
    """kept: what is recorded of each claim. before_boot: of those that were prepared before the last boot,
    and hold nothing. holders: by name of a claim, ``team/part``, the containers that the kubelet names.
    since_s: when each claim began to hold.
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
        self.kept: Mapping[str, ClaimRecord] = {record.claim.uid: record for record in kept}
        self.before_boot: dict[str, ClaimRecord] = {}
        self.holders: Mapping[str, tuple[Holder, ...]] = {}
        self.since_s = dict.fromkeys(self.kept, clock())
        self.note()

    def booted(self, boot_id: str) -> None:
        """The node runs since this boot: claims that were prepared before it hold nothing. The kubelet asks
        for them again."""
        self.kept, self.before_boot = by_boot(self.kept.values(), boot_id)
        self.note()

    def seen(self, holds: Sequence[ClaimHold]) -> None:
        """The kubelet names these containers with claims; ``note`` tells the ledger."""
        holders: dict[str, list[Holder]] = {}
        for hold in holds:
            holders.setdefault(hold.claim, []).append(Holder(hold.namespace, hold.pod, hold.container))
        self.holders = {claim: tuple(sorted(set(some))) for claim, some in holders.items()}

    def put(self, record: ClaimRecord) -> None:
        """It holds its shares from the next ``note`` on."""
        self.kept = {**self.kept, record.claim.uid: record}
        self.since_s.setdefault(record.claim.uid, self._clock())

    def drop(self, uid: str) -> None:
        """The claim holds nothing any more, and nothing is known of it."""
        self.kept = {key: record for key, record in self.kept.items() if key != uid}
        self.before_boot.pop(uid, None)
        self.since_s.pop(uid, None)
        self.note()

    def note(self) -> None:
        """Tell the ledger."""
        before = self._ledger.version
        self._ledger.claimed(
            LedgerEntry(
                share.resource,
                id_,
                Certainty.CLAIMED,
                self.holders.get(name, ()),
                self.since_s[record.claim.uid],
                claim=name,
                watch=share.config.watch,
                interval=share.config.interval,
            )
            for record in self.kept.values()
            for name in [name_of_claim(record.claim)]
            for share in record.shares
            for id_ in share.ids
        )
        if self._ledger.version != before:
            self._ask()

    def is_prepared(self, uid: str) -> bool:
        """Whether the kubelet has, or can have, its answer."""
        record = self.kept.get(uid)
        return record is not None and record.state is ClaimState.PREPARED

    @property
    def shares(self) -> tuple[GrantedShare, ...]:
        """Of all claims."""
        return tuple(share for record in self.kept.values() for share in record.shares)

    def of_others(self) -> dict[Hold, str]:
        """What others than claims hold, and who."""
        return {
            entry.hold: _who(entry)
            for entry in self._ledger.entries()
            if entry.certainty is not Certainty.CLAIMED
        }


def name_of_claim(claim: ClaimRef) -> str:
    """``team/part``."""
    return f"{claim.namespace}/{claim.name}"


def _who(entry: LedgerEntry) -> str:
    """Who holds it, who is no claim."""
    named = " and ".join(f"pod {namespace}/{pod}" for namespace, pod in sorted(entry.pods))
    if entry.left:
        return f"{entry.left[0]} of {named or 'a pod'}, which the kubelet has forgotten"
    return named or "a pod that is not named yet"

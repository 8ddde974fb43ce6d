"""Takes claims back: when the kubelet says so and nothing of their pods runs any more, or when a prepare
could not be finished. The CDI file goes first, then the record, then what the claim held is free.

Kubelets of 1.36 may unprepare a claim that a pod uses (Kubernetes #140212, #140527). PodResources cannot be
asked: it lists a pod until its unprepare has succeeded. So the processes are looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from partage.claims.agent.enforcing import Enforcing
from partage.claims.agent.holds import ClaimHolds
from partage.claims.agent.making import Making
from partage.claims.agent.ports import ClaimReader, ClaimRecords, ClaimStep, StepTaken
from partage.claims.agent.published import ClaimFiles, PublishedDevices
from partage.claims.model.grant import ClaimRecord
from partage.edges.hardware.port import Hardware
from partage.edges.kubelet.container_names import container_names
from partage.errors import PartageError
from partage.model.cgroup import parse_cgroup
from partage.model.claim import ClaimRef
from partage.model.gpu_use import Left
from partage.model.ids import PodUid
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import Certainty, EndingHold, Holder, LedgerEntry
from partage.text import listed
from partage.values import Frozen

log = logging.getLogger(__name__)


LOOK_S = 1.0
"""How long the helper may look, in seconds. It takes milliseconds."""

AGAIN_S = 0.2
"""How much later it is looked again, in seconds: what a runtime has just killed may take a moment to end, and
the kubelet asks again only after ten seconds."""

_MOST_NAMED = 3


class StillThere(Frozen):
    """reason: what still runs, or why nobody can tell. pods: that have to be gone."""

    reason: str
    pods: frozenset[PodUid]


class ClaimEnds:
    """directory: of the containers' logs. patience_s: how long a claim is kept because of a process."""

    def __init__(
        self, hardware: Hardware, directory: Path, clock: Callable[[], float], patience_s: float
    ) -> None:
        self._hardware, self._directory = hardware, directory
        self._clock, self._patience_s = clock, patience_s
        self._named: dict[ClaimRef, frozenset[Holder]] = {}
        self._since_s: dict[str, float] = {}

    def seen(self, holders: Mapping[str, tuple[Holder, ...]], kept: Iterable[ClaimRecord]) -> None:
        """The kubelet names these containers, by ``namespace/name`` of the claim. Names are kept as long as
        the claim is: it may have forgotten a pod that still runs."""
        refs = {record.claim for record in kept}
        now = {ref: frozenset(holders.get(f"{ref}", ())) for ref in refs}
        self._named = {ref: self._named.get(ref, frozenset()) | named for ref, named in now.items()}
        self._since_s = {
            uid: since_s for uid, since_s in self._since_s.items() if uid in {ref.uid for ref in refs}
        }

    async def still_there(self, record: ClaimRecord) -> StillThere | None:
        """What is in the way of taking this claim back; None: nothing. Where nobody can look, the kubelet's
        word decides, as for the device plugin."""
        pods = frozenset(record.pods)
        try:
            async with asyncio.timeout(LOOK_S):
                pods |= await self._users(record)
                left = await self._left(pods)
        except (PartageError, TimeoutError) as error:
            why = str(error) or f"no answer within {LOOK_S:g} s"
            found = StillThere(f"nobody can tell whether anything of its pods still runs: {why}", pods)
        else:
            if not left.processes or left.unseen:
                self._since_s.pop(record.claim.uid, None)
                return None
            some = listed([str(process) for process in left.processes], _MOST_NAMED)
            runs = "runs" if len(left.processes) == 1 else "run"
            found = StillThere(
                f"{some} of its pods still {runs}", frozenset(process.pod for process in left.processes)
            )
        self._since_s.setdefault(record.claim.uid, self._clock())
        return found

    async def _left(self, pods: frozenset[PodUid]) -> Left:
        left = await self._hardware.left_of(pods) if pods else Left()
        if not left.processes:
            return left
        await asyncio.sleep(AGAIN_S)
        return await self._hardware.left_of(pods)

    async def _users(self, record: ClaimRecord) -> frozenset[PodUid]:
        """Pods that use its GPUs and have it by the kubelet's word: they may have come after its prepare."""
        named = self._named.get(record.claim)
        if not named:
            return frozenset()
        seen, names = await asyncio.gather(
            self._hardware.processes(), asyncio.to_thread(container_names, self._directory)
        )
        gpus = {share.gpu for share in record.shares}
        owners = [parse_cgroup(row.cgroups) for row in seen.rows if row.gpu in gpus]
        return frozenset(owner.pod for owner in owners if owner.pod and names.get(owner.container) in named)

    def is_over(self, record: ClaimRecord) -> bool:
        """It has been waited for long enough."""
        since_s = self._since_s.get(record.claim.uid)
        return since_s is not None and self._clock() - since_s >= self._patience_s

    def ending(self, record: ClaimRecord, pods: frozenset[PodUid], since_s: float) -> tuple[EndingHold, ...]:
        """What is still held of a claim that was taken back while these pods run. Without a pod that is known
        there is nothing whose end could be seen: then nothing is held, as the kubelet says."""
        if not pods:
            return ()
        named = tuple(sorted(self._named.get(record.claim, ())))
        return tuple(
            EndingHold(
                LedgerEntry(share.resource, id_, Certainty.ENDING, named, since_s, ended_s=self._clock()),
                pods,
            )
            for share in record.shares
            for id_ in share.ids
        )


class ClaimWork(Struct):
    """What those need alike who prepare claims, mend them and take them back. now: what claims can get.
    holds: what they have. taken: told of each step.
    """

    holds: ClaimHolds
    now: PublishedDevices
    reader: ClaimReader
    records: ClaimRecords
    files: ClaimFiles
    enforcing: Enforcing
    making: Making
    taken: StepTaken


class TakingBack:
    """Call it with the lock of the holds. ended: told of each claim that has ended. ask: for a turn."""

    def __init__(
        self,
        work: ClaimWork,
        ledger: Ledger,
        ends: ClaimEnds,
        *,
        ended: Callable[[str], None],
        ask: Callable[[], None],
    ) -> None:
        self._work, self._ledger, self._ends = work, ledger, ends
        self._ended, self._ask = ended, ask

    async def unless_used(self, uid: str) -> str:
        """Why it cannot be taken back: something of its pods still runs; empty: it is taken back.

        A process that does not end for long, as one that hangs in the driver, keeps its shares, and the
        kubelet does not wait any longer.
        """
        record = self._work.holds.kept.get(uid)
        if record is None or (there := await self._ends.still_there(record)) is None:
            return await self.at_once(uid)
        if not self._ends.is_over(record):
            log.warning(
                "a claim is not taken back",
                extra={"claim": str(record.claim), "reason": there.reason},
            )
            return f"claim {record.claim} is not taken back yet: {there.reason}"
        left = self._ends.ending(record, there.pods, self._work.holds.since_s[uid])
        reason = await self.at_once(uid, close=not left)
        if not reason:
            self._ledger.restore_ending(left)
            self._ask()
        return reason

    async def at_once(self, uid: str, *, close: bool = True) -> str:
        """Why it cannot be taken back; empty: nothing is left of it, nor of what it was before a reboot.
        close: also what it was allowed."""
        record = self._work.holds.kept.get(uid) or self._work.holds.before_boot.get(uid)
        if record is None:
            return ""
        try:
            await self._work.files.remove(uid)
            await self._work.taken(ClaimStep.FILE_REMOVED, record.claim)
            await asyncio.to_thread(self._work.records.remove, uid)
        except PartageError as error:
            return str(error)
        await self._work.taken(ClaimStep.FORGOTTEN, record.claim)
        self._work.holds.drop(uid)
        self._ended(uid)
        if close:
            await self._work.enforcing.release(record.shares)
        if any(share.place or share.device in self._work.now.devices.places for share in record.shares):
            self._ask()
        log.info("a claim is taken back", extra={"claim": str(record.claim)})
        return ""

"""Prepares claims for the kubelet: one call at a time, each claim by itself.

The order of the steps is what a crash at any moment is recovered from: the claim is read and judged; its
record ``started`` is written; its CDI file is written; its record ``prepared``, with the answer, is written;
the answer goes out. A claim that has only the first record is taken back by the next agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from partage.claims.agent.afterwards import Afterwards
from partage.claims.agent.ports import ClaimStep
from partage.claims.agent.taking_back import ClaimWork, TakingBack
from partage.claims.decide.allocation import grant
from partage.claims.decide.cdi import ClaimCdi
from partage.claims.model.claim import Claim
from partage.claims.model.grant import (
    ClaimRecord,
    ClaimState,
    Granted,
    GrantedShare,
    RefusalReason,
    RefusedClaim,
    prepared,
)
from partage.edges.kubelet.port import ConditionList
from partage.errors import Absent, ClusterError, PartageError
from partage.model.claim import ClaimRef, PreparedDevice
from partage.model.ids import PodUid
from partage.model.share import LONGEST_REFUSAL, AllocationRefused
from partage.text import shortened

log = logging.getLogger(__name__)


class ClaimCounts(Struct):
    """Since the start. refused: by reason. prepares: calls of the kubelet; prepare_s: their duration in all,
    in seconds.
    """

    refused: Counter[RefusalReason] = field(default_factory=Counter)
    prepares: int = 0
    prepare_s: float = 0.0

    def took(self, seconds: float) -> None:
        """A call has ended."""
        self.prepares += 1
        self.prepare_s += seconds


class ClaimDriver:
    """Answers the kubelet: see ``DraHandler``."""

    def __init__(
        self,
        work: ClaimWork,
        back: TakingBack,
        later: Afterwards,
        *,
        clock: Callable[[], float],
        ask: Callable[[], None],
        say: Callable[[ClaimRecord], None],
    ) -> None:
        """ask: for a turn of the loop at once. say: told of each claim that is prepared."""
        self._work, self._back, self._later = work, back, later
        self._clock, self._ask, self._say = clock, ask, say
        self.counts = ClaimCounts()

    def conditions(self) -> ConditionList:
        """The health of all devices of the pool."""
        return self._work.now.conditions

    async def changed(self, seen_version: int) -> None:
        """Return when the version of ``conditions`` is no longer seen_version."""
        await self._work.now.changed(seen_version)

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """By UID: the devices, or why there are none now."""
        began_s = self._clock()
        self._later.called()
        try:
            answers = await self._all_prepared(claims)
        except asyncio.CancelledError:  # the kubelet does not wait any more
            self._work.making.gave_up(ref.uid for ref in claims)
            raise
        finally:
            self._later.called()
        self.counts.took(self._clock() - began_s)
        return answers

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """By UID: why it cannot be taken back now; empty: it is, or was never prepared."""
        answers = {}
        self._later.called()
        async with self._work.holds.turn:
            for ref in claims:
                answers[ref.uid] = await self._back.unless_used(ref.uid)
        self._later.called()
        return answers

    async def _all_prepared(
        self, claims: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """What is begun under the lock is ended under it, also if the kubelet does not wait."""
        unknown = [ref for ref in claims if not self._work.holds.is_prepared(ref.uid)]
        read = await asyncio.gather(*(self._read(ref) for ref in unknown))
        by_uid = {ref.uid: claim for ref, claim in zip(unknown, read, strict=True)}
        first = await asyncio.shield(self._each_prepared(claims, by_uid))
        if any(isinstance(answer, Granted) for answer in first.values()):
            self._ask()  # for a turn that makes their devices
        # Others are served meanwhile: making a MIG device takes seconds.
        late = await asyncio.gather(
            *(
                self._once_made(ref, by_uid.get(ref.uid), answer)
                for ref, answer in first.items()
                if isinstance(answer, Granted)
            )
        )
        answers = {ref.uid: answer for ref, answer in first.items() if not isinstance(answer, Granted)}
        return answers | dict(late)

    async def _each_prepared(
        self, claims: Sequence[ClaimRef], by_uid: Mapping[str, Claim | RefusedClaim]
    ) -> dict[ClaimRef, tuple[PreparedDevice, ...] | str | Granted]:
        async with self._work.holds.turn:
            return {ref: await self._prepared(ref, by_uid.get(ref.uid)) for ref in claims}

    async def _read(self, ref: ClaimRef) -> Claim | RefusedClaim:
        try:
            return await self._work.reader.claim(ref.namespace, ref.name)
        except Absent:
            return RefusedClaim(RefusalReason.REPLACED, f"claim {ref} does not exist any more")
        except (ClusterError, ValueError) as error:
            return RefusedClaim(RefusalReason.UNREADABLE, f"claim {ref} cannot be read: {error}")

    async def _prepared(
        self, ref: ClaimRef, claim: Claim | RefusedClaim | None
    ) -> tuple[PreparedDevice, ...] | str | Granted:
        """Granted: its devices have still to be made, and it is recorded that they are wanted."""
        record = self._work.holds.kept.get(ref.uid)
        if record is not None and record.state is ClaimState.PREPARED:
            await self._work.files.mend(record)
            return record.answer
        granted = self._judged(ref, claim)
        if isinstance(granted, RefusedClaim):
            return self._refused(granted)
        try:
            if not self._work.making.is_there(granted):
                await self._begun(granted)
                return granted
            pods = claim.pods if isinstance(claim, Claim) else ()
            return await self._carried_out(granted, self._work.files.content(granted), pods)
        except (PartageError, AllocationRefused) as error:
            if ref.uid in self._work.holds.kept:
                await self._back.at_once(ref.uid)
            return self._refused(RefusedClaim(RefusalReason.STEP, str(error)))

    async def _once_made(
        self, ref: ClaimRef, claim: Claim | RefusedClaim | None, granted: Granted
    ) -> tuple[str, tuple[PreparedDevice, ...] | str]:
        """UID and answer of a claim once its devices are there, or why they are not."""
        reason = await self._work.making.until_there(granted)
        if not reason:
            await self._work.taken(ClaimStep.MADE, ref)
        return ref.uid, await asyncio.shield(self._finished(ref, claim, granted, reason))

    async def _finished(
        self, ref: ClaimRef, claim: Claim | RefusedClaim | None, granted: Granted, reason: str
    ) -> tuple[PreparedDevice, ...] | str:
        """reason: why its devices are not there; empty: they are."""
        async with self._work.holds.turn:
            if ref.uid not in self._work.holds.kept:
                return f"claim {ref} was taken back while it was prepared"
            answer: tuple[PreparedDevice, ...] | str | Granted = granted
            if not reason:
                answer = await self._prepared(ref, claim)
                reason = "was given a device that is gone again"
            if isinstance(answer, tuple):
                return answer
            await self._back.at_once(ref.uid)
            if isinstance(answer, str):
                return answer
            text = f"claim {ref} {reason}; it is tried again by itself"
            return self._refused(RefusedClaim(RefusalReason.STEP, shortened(text, LONGEST_REFUSAL)))

    def _refused(self, refused: RefusedClaim) -> str:
        self.counts.refused[refused.reason] += 1
        log.warning("a claim is refused", extra={"reason": refused.text})
        return refused.text

    def _judged(self, ref: ClaimRef, claim: Claim | RefusedClaim | None) -> Granted | RefusedClaim:
        """What the claim gets. Nothing is changed."""
        if claim is None or isinstance(claim, RefusedClaim):
            return claim or RefusedClaim(RefusalReason.UNREADABLE, "the claim was taken back meanwhile")
        if self._work.now.terms is None:
            return RefusedClaim(
                RefusalReason.STEP, "the node has not been observed yet; it is tried again by itself"
            )
        devices, before = self._work.now.devices, self._work.holds.before_boot.get(ref.uid)
        rows = (devices.named(result.device) for result in claim.results)
        granted = grant(
            claim,
            ref,
            devices,
            self._work.holds.on({row.gpu for row in rows if row is not None}),
            self._work.holds.of_others(),
            recorded=before.gpus if before else {},
            in_force=self._work.enforcing.in_force,
            guard=self._work.now.guard,
        )
        if isinstance(granted, RefusedClaim):
            return granted
        for share in granted.shares:
            if (closed := self._work.now.closed(share)) is not None:
                text = f"claim {ref} was given {share.device}, which {closed.reason}"
                return RefusedClaim(RefusalReason.HELD, f"{text}; it is tried again by itself")
        return granted

    async def _begun(self, granted: Granted) -> None:
        """Record that a claim wants devices that have still to be made. Raises HardwareError."""
        terms = self._work.now.terms
        assert terms is not None
        boot_id = terms.inventory.boot_id
        self._work.making.given_up.discard(granted.claim.uid)
        await self._work.making.note(granted, boot_id)
        await self._work.taken(ClaimStep.PLACE_NOTED, granted.claim)
        await self._keep(ClaimRecord(granted.claim, ClaimState.STARTED, boot_id, granted.shares))
        await self._work.taken(ClaimStep.STARTED, granted.claim)
        self._ask()

    async def _carried_out(
        self, granted: Granted, cdi: ClaimCdi, pods: tuple[PodUid, ...]
    ) -> tuple[PreparedDevice, ...]:
        """Raises HardwareError."""
        claim, terms = granted.claim, self._work.now.terms
        assert terms is not None
        boot_id = terms.inventory.boot_id
        await self._work.taken(ClaimStep.JUDGED, claim)
        started = ClaimRecord(granted.claim, ClaimState.STARTED, boot_id, granted.shares, pods=pods)
        await self._keep(started)
        await self._work.taken(ClaimStep.STARTED, claim)
        await self._work.enforcing.hold(granted.shares)
        await self._work.taken(ClaimStep.LIMITED, claim)
        done = prepared(started, cdi.ids)
        await self._work.files.write(done, cdi)
        await self._work.taken(ClaimStep.FILE_WRITTEN, claim)
        await self._keep(done)
        await self._work.taken(ClaimStep.PREPARED, claim)
        log.info(
            "a claim is prepared",
            extra={"claim": str(granted.claim), "devices": _devices(granted.shares)},
        )
        self._say(done)
        self._later.ask()  # its record is to be flushed, however long its limits took
        return done.answer

    async def _keep(self, record: ClaimRecord) -> None:
        """It holds its shares from now on, also while the disk is slow: no GPU changes meanwhile.

        Raises HardwareError, and then nothing has changed.
        """
        uid = record.claim.uid
        before = self._work.holds.kept.get(uid)
        self._work.holds.put(record)
        if record.state is ClaimState.STARTED:
            if any(share.config.interval is not None for share in record.shares):
                self._ask()  # it is waited for: the planner sets time slices
            await self._work.taken(ClaimStep.HELD, record.claim)
        try:
            await asyncio.to_thread(self._work.records.save, record)
        except PartageError:
            self._work.holds.put_back(uid, before)
            raise


def _devices(shares: Sequence[GrantedShare]) -> str:
    return ", ".join(share.device for share in shares)

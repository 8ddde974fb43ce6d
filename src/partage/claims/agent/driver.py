"""Prepares claims for the kubelet, and takes them back: one call at a time, each claim by itself.

The order of the steps is what a crash at any moment is recovered from: the claim is read and judged; its
record ``started`` is written; its CDI file is written; its record ``prepared``, with the answer, is written;
the answer goes out. A claim that has only the first record is taken back by the next agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from partage.agent.endpoints.plugin_set import AllocateContext
from partage.claims.agent.ends import ClaimEnds
from partage.claims.agent.enforcing import Enforcing
from partage.claims.agent.holds import ClaimHolds, name_of_claim
from partage.claims.agent.making import Making
from partage.claims.agent.metrics import ClaimCounts
from partage.claims.agent.ports import CdiFiles, ClaimReader, ClaimRecords
from partage.claims.agent.published import PublishedDevices
from partage.claims.decide.allocation import grant
from partage.claims.decide.cdi import ClaimCdi, claim_cdi
from partage.claims.decide.status import held_now
from partage.claims.model.claim import Claim
from partage.claims.model.grant import Granted, GrantedShare, RefusalReason, RefusedClaim
from partage.claims.model.names import ClaimNames
from partage.claims.model.record import ClaimRecord, ClaimState, prepared
from partage.claims.model.steps import ClaimStep, StepTaken, go_on
from partage.edges.kubelet.dra_port import ConditionList
from partage.errors import Absent, ClusterError, PartageError
from partage.model.allocation import LONGEST_REFUSAL, AllocationRefused
from partage.model.claim import ClaimHold, ClaimRef, PreparedDevice
from partage.model.ids import PodUid
from partage.model.mig_demand import Demands
from partage.plan.serve.claim_offer import ClaimOffer
from partage.plan.serve.ledger import Ledger
from partage.text import shortened

log = logging.getLogger(__name__)


class ClaimDriver:
    """Answers the kubelet. now: what claims can get. holds: what they have."""

    def __init__(
        self,
        names: ClaimNames,
        node: str,
        ledger: Ledger,
        clock: Callable[[], float],
        ask: Callable[[], None],
        *,
        reader: ClaimReader,
        records: ClaimRecords,
        cdi: CdiFiles,
        enforcing: Enforcing,
        ends: ClaimEnds,
        making: Making,
        kept: Sequence[ClaimRecord] = (),
        say: Callable[[ClaimRecord], None] = lambda _: None,
        taken: StepTaken = go_on,
    ) -> None:
        """ask: for a turn of the loop. kept: what an agent before has recorded. say: told of each claim that
        is prepared. taken: told of each step."""
        self._ledger, self._clock, self._ask = ledger, clock, ask
        self._reader, self._records, self._cdi = reader, records, cdi
        self._enforcing, self._ends, self._making = enforcing, ends, making
        self._say, self._taken = say, taken
        self._said: dict[str, ClaimRecord] = {}
        self._given_up: set[str] = set()
        self._turn = asyncio.Lock()
        self.now = PublishedDevices(names, node)
        self.holds = ClaimHolds(ledger, clock, ask, kept)
        self.counts = ClaimCounts()

    # --- what the agent says ---

    def publish(self, offer: ClaimOffer, terms: AllocateContext) -> None:
        """What claims can get from now on."""
        self._enforcing.seen(offer.in_force)
        if self.now.publish(offer, terms):
            self._making.published(self.now.devices, offer)
            self._say_what_changed()

    def demands(self, boot_id: str) -> Demands:
        """See ``ClaimsPart``."""
        return self._making.demands(self.holds.kept.values(), boot_id)

    def _say_what_changed(self) -> None:
        """Claims whose shares guarantee less than before, or again what was promised."""
        for uid, record in self.holds.kept.items():
            if record.state is not ClaimState.PREPARED:
                continue
            now = self._held_now(record)
            if now != self._said.get(uid, record):
                self._said[uid] = now
                self._say(now)

    def _held_now(self, record: ClaimRecord) -> ClaimRecord:
        read = self._enforcing.in_force.limits_read
        return held_now(record, self.now.devices, guard=self.now.guard, limits_read=read)

    def seen(self, holds: Sequence[ClaimHold]) -> None:
        """The kubelet names these containers with claims."""
        self.holds.seen(holds)
        self._ends.seen(self.holds.holders, self.holds.kept.values())
        self.holds.note()

    # --- what the kubelet asks: see DraHandler ---

    def conditions(self) -> ConditionList:
        """The health of all devices of the pool."""
        return self.now.conditions

    async def changed(self, seen_version: int) -> None:
        """Return when the version of ``conditions`` is no longer seen_version."""
        await self.now.changed(seen_version)

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """By UID: the devices, or why there are none now."""
        began_s, news = self._clock(), not all(self.holds.is_prepared(ref.uid) for ref in claims)
        try:
            answers = await self._all_prepared(claims)
        except asyncio.CancelledError:  # the kubelet does not wait any more
            self._given_up.update(ref.uid for ref in claims)
            self._making.wake()
            raise
        finally:
            if news:
                self._ask()  # not before: a turn takes longer than a prepare
        self.counts.took(self._clock() - began_s)
        return answers

    async def _all_prepared(
        self, claims: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """What is begun under the lock is ended under it, also if the kubelet does not wait."""
        unknown = [ref for ref in claims if not self.holds.is_prepared(ref.uid)]
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
        async with self._turn:
            return {ref: await self._prepared(ref, by_uid.get(ref.uid)) for ref in claims}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """By UID: why it cannot be taken back now; empty: it is, or was never prepared."""
        answers = {}
        async with self._turn:
            for ref in claims:
                answers[ref.uid] = await self._ended(ref.uid)
        return answers

    async def _ended(self, uid: str) -> str:
        """Why it cannot be taken back: something of its pods still runs; empty: it is taken back.

        A process that does not end for long, as one that hangs in the driver, keeps its shares, and the
        kubelet does not wait any longer.
        """
        record = self.holds.kept.get(uid)
        if record is None or (there := await self._ends.still_there(record)) is None:
            return await self._taken_back(uid)
        if not self._ends.is_over(record):
            log.warning(
                "a claim is not taken back",
                extra={"claim": name_of_claim(record.claim), "reason": there.reason},
            )
            return f"claim {name_of_claim(record.claim)} is not taken back yet: {there.reason}"
        left = self._ends.ending(record, there.pods, self.holds.since_s[uid])
        reason = await self._taken_back(uid, close=not left)
        if not reason:
            self._ledger.restore_ending(left)
            self._ask()
        return reason

    async def _read(self, ref: ClaimRef) -> Claim | RefusedClaim:
        try:
            return await self._reader.claim(ref.namespace, ref.name)
        except Absent:
            return RefusedClaim(
                RefusalReason.REPLACED, f"claim {ref.namespace}/{ref.name} does not exist any more"
            )
        except (ClusterError, ValueError) as error:
            return RefusedClaim(
                RefusalReason.UNREADABLE, f"claim {ref.namespace}/{ref.name} cannot be read: {error}"
            )

    async def _prepared(
        self, ref: ClaimRef, claim: Claim | RefusedClaim | None
    ) -> tuple[PreparedDevice, ...] | str | Granted:
        """Granted: its devices have still to be made, and it is recorded that they are wanted."""
        record = self.holds.kept.get(ref.uid)
        if record is not None and record.state is ClaimState.PREPARED:
            await self._mend_file(record)
            return record.answer
        granted = self._judged(ref, claim)
        if isinstance(granted, RefusedClaim):
            return self._refused(granted)
        try:
            if not self._making.is_there(granted):
                await self._begun(granted)
                return granted
            cdi = claim_cdi(
                granted, self.now.devices, self.now.responder, guard=self.now.guard, limits=self.now.limits
            )
            return await self._carried_out(granted, cdi, claim.pods if isinstance(claim, Claim) else ())
        except (PartageError, AllocationRefused) as error:
            if ref.uid in self.holds.kept:
                await self._taken_back(ref.uid)
            return self._refused(RefusedClaim(RefusalReason.STEP, str(error)))

    async def _once_made(
        self, ref: ClaimRef, claim: Claim | RefusedClaim | None, granted: Granted
    ) -> tuple[str, tuple[PreparedDevice, ...] | str]:
        """UID and answer of a claim once its devices are there, or why they are not."""
        reason = await self._making.until_there(granted)
        if not reason:
            await self._taken(ClaimStep.MADE, ref)
        return ref.uid, await asyncio.shield(self._finished(ref, claim, granted, reason))

    async def _finished(
        self, ref: ClaimRef, claim: Claim | RefusedClaim | None, granted: Granted, reason: str
    ) -> tuple[PreparedDevice, ...] | str:
        """reason: why its devices are not there; empty: they are."""
        async with self._turn:
            if ref.uid not in self.holds.kept:
                return f"claim {ref.namespace}/{ref.name} was taken back while it was prepared"
            answer: tuple[PreparedDevice, ...] | str | Granted = granted
            if not reason:
                answer = await self._prepared(ref, claim)
                reason = "was given a device that is gone again"
            if isinstance(answer, tuple):
                return answer
            await self._taken_back(ref.uid)
            if isinstance(answer, str):
                return answer
            text = f"claim {ref.namespace}/{ref.name} {reason}; it is tried again by itself"
            return self._refused(RefusedClaim(RefusalReason.STEP, shortened(text, LONGEST_REFUSAL)))

    def _refused(self, refused: RefusedClaim) -> str:
        self.counts.refused[refused.reason] += 1
        log.warning("a claim is refused", extra={"reason": refused.text})
        return refused.text

    def _judged(self, ref: ClaimRef, claim: Claim | RefusedClaim | None) -> Granted | RefusedClaim:
        """What the claim gets. Nothing is changed."""
        if claim is None or isinstance(claim, RefusedClaim):
            return claim or RefusedClaim(RefusalReason.UNREADABLE, "the claim was taken back meanwhile")
        if self.now.terms is None:
            return RefusedClaim(
                RefusalReason.STEP, "the node has not been observed yet; it is tried again by itself"
            )
        before = self.holds.before_boot.get(ref.uid)
        granted = grant(
            claim,
            ref,
            self.now.devices,
            [hold.granted for hold in self.holds.kept.values()],
            self.holds.of_others(),
            recorded=before.gpus if before else {},
            in_force=self._enforcing.in_force,
            guard=self.now.guard,
        )
        if isinstance(granted, RefusedClaim):
            return granted
        for share in granted.shares:
            if (closed := self.now.closed(share)) is not None:
                text = f"claim {ref.namespace}/{ref.name} was given {share.device}, which {closed.reason}"
                return RefusedClaim(RefusalReason.HELD, f"{text}; it is tried again by itself")
        return granted

    async def _begun(self, granted: Granted) -> None:
        """Record that a claim wants devices that have still to be made. Raises HardwareError."""
        terms = self.now.terms
        assert terms is not None
        boot_id = terms.inventory.boot_id
        self._given_up.discard(granted.claim.uid)
        await self._making.note(granted, boot_id)
        await self._taken(ClaimStep.PLACE_NOTED, granted.claim)
        await self._keep(ClaimRecord(granted.claim, ClaimState.STARTED, boot_id, granted.shares))
        await self._taken(ClaimStep.STARTED, granted.claim)
        self._ask()

    async def clear_up(self) -> None:
        """Take back what nobody waits for any more, and forget where MIG devices were made that are gone."""
        async with self._turn:
            while self._given_up:
                record = self.holds.kept.get(uid := self._given_up.pop())
                if record is not None and record.state is ClaimState.STARTED:
                    await self._taken_back(uid)
            if self.now.terms is not None:
                await self._making.forget_gone(self.holds.kept.values(), self.now.terms.inventory)

    async def _carried_out(
        self, granted: Granted, cdi: ClaimCdi, pods: tuple[PodUid, ...]
    ) -> tuple[PreparedDevice, ...]:
        """Raises HardwareError."""
        claim, terms = granted.claim, self.now.terms
        assert terms is not None
        boot_id = terms.inventory.boot_id
        await self._taken(ClaimStep.JUDGED, claim)
        started = ClaimRecord(granted.claim, ClaimState.STARTED, boot_id, granted.shares, pods=pods)
        await self._keep(started)
        await self._taken(ClaimStep.STARTED, claim)
        await self._enforcing.hold(granted.shares)
        await self._taken(ClaimStep.LIMITED, claim)
        done = prepared(started, cdi.ids)
        await asyncio.to_thread(self._cdi.write, done, cdi)
        await self._taken(ClaimStep.FILE_WRITTEN, claim)
        await self._keep(done)
        await self._taken(ClaimStep.PREPARED, claim)
        log.info(
            "a claim is prepared",
            extra={"claim": name_of_claim(granted.claim), "devices": _devices(granted.shares)},
        )
        self._said[done.claim.uid] = now = self._held_now(done)
        self._say(now)
        return done.answer

    async def _keep(self, record: ClaimRecord) -> None:
        """It holds its shares from now on, also while the disk is slow: no GPU changes meanwhile.

        Raises HardwareError, and then nothing has changed.
        """
        before = self.holds.kept
        self.holds.put(record)
        if record.state is ClaimState.STARTED:
            self.holds.note(ask=any(share.config.interval is not None for share in record.shares))
            await self._taken(ClaimStep.HELD, record.claim)
        try:
            await asyncio.to_thread(self._records.save, record)
        except PartageError:
            self.holds.kept = before
            self.holds.note()
            raise

    async def _taken_back(self, uid: str, *, close: bool = True) -> str:
        """Why it cannot be taken back; empty: nothing is left of it, nor of what it was before a reboot.
        close: also what it was allowed."""
        record = self.holds.kept.get(uid) or self.holds.before_boot.get(uid)
        if record is None:
            return ""
        try:
            await asyncio.to_thread(self._cdi.remove, uid)
            await self._taken(ClaimStep.FILE_REMOVED, record.claim)
            await asyncio.to_thread(self._records.remove, uid)
        except PartageError as error:
            return str(error)
        await self._taken(ClaimStep.FORGOTTEN, record.claim)
        self.holds.drop(uid)
        self._said.pop(uid, None)
        if close:
            await self._enforcing.release(record.shares)
        if any(share.place or share.device in self.now.devices.places for share in record.shares):
            self._ask()
        log.info("a claim is taken back", extra={"claim": name_of_claim(record.claim)})
        return ""

    async def mend_limits(self) -> None:
        """Set limits again that an MPS daemon has lost, and close slots that nobody has any more."""
        async with self._turn:
            await self._enforcing.mend(self.holds.shares, self.now.devices, self.holds.of_others())

    @property
    def limits_are_amiss(self) -> bool:
        """Whether there is something for ``mend_limits``, now or when a process has ended."""
        shares = self.holds.shares
        return bool(self._enforcing.amiss(shares) or self._enforcing.left_open(shares))

    async def mend_files(self) -> None:
        """Write CDI files again that somebody has removed: a container that is started again needs them."""
        async with self._turn:
            for record in [*self.holds.kept.values()]:
                if record.state is ClaimState.PREPARED:
                    await self._mend_file(record)

    async def _mend_file(self, record: ClaimRecord) -> None:
        """Without a device of it there is nothing to write, and the containers keep what they have."""
        terms, devices = self.now.terms, self.now.devices
        if terms is None or not all(devices.named(share.device) for share in record.shares):
            return
        try:
            if not await asyncio.to_thread(self._cdi.has, record.claim.uid):
                cdi = claim_cdi(
                    record.granted, devices, self.now.responder, guard=self.now.guard, limits=self.now.limits
                )
                await asyncio.to_thread(self._cdi.write, record, cdi)
        except (PartageError, AllocationRefused) as error:
            log.warning(
                "the CDI file of a claim is missing",
                extra={"claim": name_of_claim(record.claim), "reason": str(error)},
            )

    async def forget_gone(self) -> None:
        """Take back claims that do not exist any more and that no container has: nobody else will, if the
        kubelet has lost its record of them."""
        for record in [*self.holds.kept.values(), *self.holds.before_boot.values()]:
            ref = record.claim
            try:
                gone = (await self._reader.claim(ref.namespace, ref.name)).ref.uid != ref.uid
            except Absent:
                gone = True
            except (ClusterError, ValueError):
                continue
            if gone and name_of_claim(ref) not in self.holds.holders:
                async with self._turn:
                    await self._ended(ref.uid)

    async def find_again(self, lost: Collection[str]) -> frozenset[str]:
        """Prepare claims anew of which nothing is known any more but that their containers run.

        lost: their UIDs. Returns those that have to wait for the API server. They are found by the names that
        the kubelet says; a claim that it does not name has no container.
        """
        known = {name_of_claim(hold.claim) for hold in self.holds.kept.values()}
        waiting = False
        for name in self.holds.holders.keys() - known:
            try:
                claim = await self._reader.claim(*name.split("/", 1))
            except Absent:
                continue
            except (ClusterError, ValueError):
                waiting = True
                continue
            if claim.ref.uid in lost:
                log.warning("a claim without a record is prepared anew", extra={"claim": name})
                await self.prepare([claim.ref])
        return frozenset(lost).difference(self.holds.kept) if waiting else frozenset()

    async def roll_back_started(self) -> None:
        """Take back what an agent that was killed had only begun."""
        async with self._turn:
            for record in [*self.holds.kept.values()]:
                if record.state is ClaimState.STARTED:
                    await self._taken_back(record.claim.uid)


def _devices(shares: Sequence[GrantedShare]) -> str:
    return ", ".join(share.device for share in shares)

"""Prepares claims for the kubelet, and takes them back: one call at a time, each claim by itself.

The order of the steps is what a crash at any moment is recovered from: the claim is read and judged; its
record ``started`` is written; its CDI file is written; its record ``prepared``, with the answer, is written;
the answer goes out. A claim that has only the first record is taken back by the next agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from partage.agent.endpoints.plugin_set import AllocateContext
from partage.claims.agent.ends import ClaimEnds
from partage.claims.agent.enforcing import Enforcing
from partage.claims.agent.making import Making
from partage.claims.agent.metrics import ClaimCounts
from partage.claims.decide.allocation import grant
from partage.claims.decide.cdi import ClaimCdi, claim_cdi
from partage.claims.decide.devices import ClaimDevices, claim_devices
from partage.claims.decide.slices import FOREIGN
from partage.claims.decide.status import held_now
from partage.claims.model.claim import Claim
from partage.claims.model.grant import Granted, GrantedShare, RefusalReason, RefusedClaim
from partage.claims.model.names import ClaimNames
from partage.claims.model.record import ClaimRecord, ClaimState, by_boot, prepared
from partage.claims.model.steps import ClaimStep, StepTaken, go_on
from partage.edges.files.catalogue import geometry_of
from partage.edges.kubelet.dra_port import ConditionList
from partage.errors import Absent, ClusterError, PartageError
from partage.model.allocation import LONGEST_REFUSAL, AllocationRefused
from partage.model.claim import ClaimHold, ClaimRef, DeviceCondition, PreparedDevice
from partage.model.ids import PodUid
from partage.model.mig_demand import Demands
from partage.model.share import Resource
from partage.plan.offer.guarantees import with_current_guarantees
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.claim_offer import ClaimOffer, Closed
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import Certainty, Hold, Holder, LedgerEntry
from partage.text import shortened

log = logging.getLogger(__name__)


class ClaimReader(Protocol):
    """The API server, as far as it is asked for one claim."""

    async def claim(self, namespace: str, name: str) -> Claim:
        """As it is now. Raises Absent, Unreachable, Rejected; CodecError for what is no claim."""


class ClaimRecords(Protocol):
    """What is kept of claims on the disk. It flushes the disk: call it in a thread."""

    def save(self, record: ClaimRecord) -> None:
        """Keep this of its claim. Raises HardwareError: then what was there before is there."""

    def remove(self, uid: str) -> None:
        """Keep nothing of this claim. Raises HardwareError: then it is still there."""


class CdiFiles(Protocol):
    """The CDI files of claims. The calls flush the disk: call them in a thread."""

    def write(self, record: ClaimRecord, cdi: ClaimCdi) -> None:
        """record: once this is done. Raises HardwareError: then there is none, or the one before."""

    def remove(self, uid: str) -> None:
        """If it is there. Raises HardwareError."""

    def has(self, uid: str) -> bool:
        """Whether it is there. Raises HardwareError."""


class ClaimDriver:
    """Answers the kubelet, and keeps what claims hold in the ledger.

    kept: what is recorded of each claim, by its UID.
    """

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
        self._node, self._ledger, self._clock, self._ask = node, ledger, clock, ask
        self._reader, self._records, self._cdi = reader, records, cdi
        self._enforcing, self._ends = enforcing, ends
        self._say, self._taken = say, taken
        self._said: dict[str, ClaimRecord] = {}
        self._making = making
        self._given_up: set[str] = set()
        self._before_boot: dict[str, ClaimRecord] = {}
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._holders: Mapping[str, tuple[Holder, ...]] = {}
        self._offer = ClaimOffer()
        self._terms: AllocateContext | None = None
        self._conditions = ConditionList(0, ())
        self.devices = ClaimDevices(names, node, names.pool(node), {}, {})
        self.kept = {record.claim.uid: record for record in kept}
        self._since_s = dict.fromkeys(self.kept, clock())
        self.counts = ClaimCounts()
        self._note_holds()

    # --- what the agent says ---

    def booted(self, boot_id: str) -> None:
        """The node runs since this boot: claims that were prepared before it hold nothing. The kubelet asks
        for them again."""
        self.kept, self._before_boot = by_boot(self.kept.values(), boot_id)
        self._note_holds()

    def publish(self, offer: ClaimOffer, terms: AllocateContext) -> None:
        """What claims can get from now on."""
        self._enforcing.seen(offer.in_force)
        if offer == self._offer and terms == self._terms:
            return
        self._offer, self._terms = offer, terms
        self._publish_devices(offer, terms)
        self._say_what_changed()

    def _publish_devices(self, offer: ClaimOffer, terms: AllocateContext) -> None:
        rows = with_current_guarantees(offer.offer, terms.unheld, terms.inventory)
        wanted = {gpu: one.demand for gpu, one in offer.on_demand.items()}
        names, inventory = self.devices.names, terms.inventory
        self.devices = claim_devices(rows, inventory, self._node, geometry_of, names, on_demand=wanted)
        self._making.published(self.devices, offer)
        conditions = tuple(
            DeviceCondition(self.devices.pool, name, closed is None, "" if closed is None else closed.reason)
            for name, row in self.devices.rows.items()
            for closed in [offer.closed.get(row.device)]
            if not row.planned
        )
        if conditions != self._conditions.rows:
            self._conditions = ConditionList(self._conditions.version + 1, conditions)
            self._changed.set()
            self._changed = asyncio.Event()

    def demands(self, boot_id: str) -> Demands:
        """See ``ClaimsPart``."""
        return self._making.demands(self.kept.values(), boot_id)

    def _say_what_changed(self) -> None:
        """Claims whose shares guarantee less than before, or again what was promised."""
        assert self._terms is not None
        for uid, record in self.kept.items():
            if record.state is not ClaimState.PREPARED:
                continue
            now = held_now(record, self.devices, guard=bool(self._terms.guard_dir))
            if now != self._said.get(uid, record):
                self._said[uid] = now
                self._say(now)

    def seen(self, holds: Sequence[ClaimHold]) -> None:
        """The kubelet names these containers with claims."""
        holders: dict[str, list[Holder]] = {}
        for hold in holds:
            holders.setdefault(hold.claim, []).append(Holder(hold.namespace, hold.pod, hold.container))
        self._holders = {claim: tuple(sorted(set(some))) for claim, some in holders.items()}
        self._ends.seen(self._holders, self.kept.values())
        self._note_holds()

    def _note_holds(self) -> None:
        """What claims hold, for the ledger."""
        before = self._ledger.version
        self._ledger.claimed(
            LedgerEntry(
                share.resource,
                id_,
                Certainty.CLAIMED,
                self._holders.get(name, ()),
                self._since_s[record.claim.uid],
                claim=name,
                watch=share.config.watch,
                interval=share.config.interval,
            )
            for record in self.kept.values()
            for name in [f"{record.claim.namespace}/{record.claim.name}"]
            for share in record.shares
            for id_ in share.ids
        )
        if self._ledger.version != before:
            self._ask()

    # --- what the kubelet asks: see DraHandler ---

    def conditions(self) -> ConditionList:
        """The health of all devices of the pool."""
        return self._conditions

    async def changed(self, seen_version: int) -> None:
        """Return when the version of ``conditions`` is no longer seen_version."""
        while self._conditions.version == seen_version:
            await self._changed.wait()

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """By UID: the devices, or why there are none now."""
        began_s = self._clock()
        try:
            answers = await self._all_prepared(claims)
        except asyncio.CancelledError:  # the kubelet does not wait any more
            self._given_up.update(ref.uid for ref in claims)
            self._making.wake()
            raise
        self.counts.took(self._clock() - began_s)
        return answers

    async def _all_prepared(
        self, claims: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """What is begun under the lock is ended under it, also if the kubelet does not wait."""
        unknown = [ref for ref in claims if not self._has(ref)]
        read = await asyncio.gather(*(self._read(ref) for ref in unknown))
        by_uid = {ref.uid: claim for ref, claim in zip(unknown, read, strict=True)}
        first = await asyncio.shield(self._each_prepared(claims, by_uid))
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
        record = self.kept.get(uid)
        if record is None or (there := await self._ends.still_there(record)) is None:
            return await self._taken_back(uid)
        if not self._ends.is_over(record):
            log.warning(
                "a claim is not taken back", extra={"claim": _name(record.granted), "reason": there.reason}
            )
            return f"claim {_name(record.granted)} is not taken back yet: {there.reason}"
        left = self._ends.ending(record, there.pods, self._since_s[uid])
        reason = await self._taken_back(uid, close=not left)
        if not reason:
            self._ledger.restore_ending(left)
            self._ask()
        return reason

    def _has(self, ref: ClaimRef) -> bool:
        record = self.kept.get(ref.uid)
        return record is not None and record.state is ClaimState.PREPARED

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
        record = self.kept.get(ref.uid)
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
            cdi = claim_cdi(granted, self.devices, self._responder, guard=self._has_guard)
            return await self._carried_out(granted, cdi, claim.pods if isinstance(claim, Claim) else ())
        except PartageError as error:
            if ref.uid in self.kept:
                await self._taken_back(ref.uid)
            return self._refused(RefusedClaim(RefusalReason.STEP, str(error)))

    async def _once_made(
        self, ref: ClaimRef, claim: Claim | RefusedClaim | None, granted: Granted
    ) -> tuple[str, tuple[PreparedDevice, ...] | str]:
        """UID and answer of a claim once its devices are there, or why they are not."""
        reason = await self._making.until_there(granted)
        return ref.uid, await asyncio.shield(self._finished(ref, claim, granted, reason))

    async def _finished(
        self, ref: ClaimRef, claim: Claim | RefusedClaim | None, granted: Granted, reason: str
    ) -> tuple[PreparedDevice, ...] | str:
        """reason: why its devices are not there; empty: they are."""
        async with self._turn:
            if ref.uid not in self.kept:
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
        if self._terms is None:
            return RefusedClaim(
                RefusalReason.STEP, "the node has not been observed yet; it is tried again by itself"
            )
        before = self._before_boot.get(ref.uid)
        granted = grant(
            claim,
            ref,
            self.devices,
            [one.granted for one in self.kept.values()],
            self._held(),
            recorded=before.gpus if before else {},
            in_force=self._enforcing.in_force,
            guard=self._has_guard,
        )
        if isinstance(granted, RefusedClaim):
            return granted
        for share in granted.shares:
            if (closed := self._closed(share)) is not None:
                text = f"claim {ref.namespace}/{ref.name} was given {share.device}, which {closed.reason}"
                return RefusedClaim(RefusalReason.HELD, f"{text}; it is tried again by itself")
        return granted

    def _closed(self, share: GrantedShare) -> Closed | None:
        closed, place = self._offer.closed, self.devices.places.get(share.device)
        if place is None:
            return closed.get(share.uuid)
        return closed.get(share.gpu) or (FOREIGN if place.foreign else None)

    @property
    def _has_guard(self) -> bool:
        return self._terms is not None and bool(self._terms.guard_dir)

    def _responder(self, resource: Resource) -> AllocateResponder:
        terms = self._terms
        assert terms is not None
        return AllocateResponder(
            resource,
            terms.inventory,
            terms.options,
            terms.run_dir,
            cdi_classes=terms.cdi_classes,
            guard_dir=terms.guard_dir,
            read_only_pipe=terms.read_only_pipe,
        )

    def _held(self) -> dict[Hold, str]:
        """What others than claims hold, and who."""
        return {
            entry.hold: _who(entry)
            for entry in self._ledger.entries()
            if entry.certainty is not Certainty.CLAIMED
        }

    async def _begun(self, granted: Granted) -> None:
        """Record that a claim wants devices that have still to be made. Raises HardwareError."""
        terms = self._terms
        assert terms is not None
        boot_id = terms.inventory.boot_id
        self._given_up.discard(granted.claim.uid)
        await self._making.note(granted, boot_id)
        await self._keep(ClaimRecord(granted.claim, ClaimState.STARTED, boot_id, granted.shares))
        self._ask()

    async def clear_up(self) -> None:
        """Take back what nobody waits for any more, and forget where MIG devices were made that are gone."""
        async with self._turn:
            while self._given_up:
                record = self.kept.get(uid := self._given_up.pop())
                if record is not None and record.state is ClaimState.STARTED:
                    await self._taken_back(uid)
            if self._terms is not None:
                await self._making.forget_gone(self.kept.values(), self._terms.inventory)

    async def _carried_out(
        self, granted: Granted, cdi: ClaimCdi, pods: tuple[PodUid, ...]
    ) -> tuple[PreparedDevice, ...]:
        """Raises HardwareError."""
        claim, terms = granted.claim, self._terms
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
        log.info("a claim is prepared", extra={"claim": _name(granted), "devices": _devices(granted.shares)})
        self._say(done)
        return done.answer

    async def _keep(self, record: ClaimRecord) -> None:
        """It holds its shares from now on, also while the disk is slow: no GPU changes meanwhile.

        Raises HardwareError, and then nothing has changed.
        """
        before = self.kept
        self.kept = {**before, record.claim.uid: record}
        self._since_s.setdefault(record.claim.uid, self._clock())
        if record.state is ClaimState.STARTED:
            self._note_holds()
            await self._taken(ClaimStep.HELD, record.claim)
        try:
            await asyncio.to_thread(self._records.save, record)
        except PartageError:
            self.kept = before
            self._note_holds()
            raise

    async def _taken_back(self, uid: str, *, close: bool = True) -> str:
        """Why it cannot be taken back; empty: nothing is left of it, nor of what it was before a reboot.
        close: also what it was allowed."""
        record = self.kept.get(uid) or self._before_boot.get(uid)
        if record is None:
            return ""
        try:
            await asyncio.to_thread(self._cdi.remove, uid)
            await self._taken(ClaimStep.FILE_REMOVED, record.claim)
            await asyncio.to_thread(self._records.remove, uid)
        except PartageError as error:
            return str(error)
        await self._taken(ClaimStep.FORGOTTEN, record.claim)
        self.kept = {key: one for key, one in self.kept.items() if key != uid}
        self._before_boot.pop(uid, None)
        self._since_s.pop(uid, None)
        self._said.pop(uid, None)
        self._note_holds()
        if close:
            await self._enforcing.release(record.shares)
        if any(share.place or share.device in self.devices.places for share in record.shares):
            self._ask()
        log.info("a claim is taken back", extra={"claim": _name(record.granted)})
        return ""

    async def mend_limits(self) -> None:
        """Set limits again that an MPS daemon has lost, and close slots that nobody has any more."""
        async with self._turn:
            await self._enforcing.mend(self._shares(), self.devices, self._held())

    @property
    def limits_are_amiss(self) -> bool:
        """Whether there is something for ``mend_limits``, now or when a process has ended."""
        shares = self._shares()
        return bool(self._enforcing.amiss(shares) or self._enforcing.left_open(shares))

    def _shares(self) -> tuple[GrantedShare, ...]:
        return tuple(share for record in self.kept.values() for share in record.shares)

    async def mend_files(self) -> None:
        """Write CDI files again that somebody has removed: a container that is started again needs them."""
        async with self._turn:
            for record in [*self.kept.values()]:
                if record.state is ClaimState.PREPARED:
                    await self._mend_file(record)

    async def _mend_file(self, record: ClaimRecord) -> None:
        """Without a device of it there is nothing to write, and the containers keep what they have."""
        terms, devices = self._terms, self.devices
        if terms is None or not all(devices.named(share.device) for share in record.shares):
            return
        try:
            if not await asyncio.to_thread(self._cdi.has, record.claim.uid):
                cdi = claim_cdi(record.granted, devices, self._responder, guard=self._has_guard)
                await asyncio.to_thread(self._cdi.write, record, cdi)
        except (PartageError, AllocationRefused) as error:
            log.warning(
                "the CDI file of a claim is missing",
                extra={"claim": _name(record.granted), "reason": str(error)},
            )

    async def forget_gone(self) -> None:
        """Take back claims that do not exist any more and that no container has: nobody else will, if the
        kubelet has lost its record of them."""
        for record in [*self.kept.values(), *self._before_boot.values()]:
            ref = record.claim
            try:
                gone = (await self._reader.claim(ref.namespace, ref.name)).ref.uid != ref.uid
            except Absent:
                gone = True
            except (ClusterError, ValueError):
                continue
            if gone and f"{ref.namespace}/{ref.name}" not in self._holders:
                async with self._turn:
                    await self._ended(ref.uid)

    async def find_again(self, lost: Collection[str]) -> frozenset[str]:
        """Prepare claims anew of which nothing is known any more but that their containers run.

        lost: their UIDs. Returns those that have to wait for the API server. They are found by the names that
        the kubelet says; a claim that it does not name has no container.
        """
        known = {f"{one.claim.namespace}/{one.claim.name}" for one in self.kept.values()}
        waiting = False
        for name in self._holders.keys() - known:
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
        return frozenset(lost).difference(self.kept) if waiting else frozenset()

    async def roll_back_started(self) -> None:
        """Take back what an agent that was killed had only begun."""
        async with self._turn:
            for record in [*self.kept.values()]:
                if record.state is ClaimState.STARTED:
                    await self._taken_back(record.claim.uid)


def _who(entry: LedgerEntry) -> str:
    """Who holds it, who is no claim."""
    named = " and ".join(f"pod {namespace}/{pod}" for namespace, pod in sorted(entry.pods))
    if entry.left:
        return f"{entry.left[0]} of {named or 'a pod'}, which the kubelet has forgotten"
    return named or "a pod that is not named yet"


def _name(granted: Granted) -> str:
    return f"{granted.claim.namespace}/{granted.claim.name}"


def _devices(shares: Sequence[GrantedShare]) -> str:
    return ", ".join(share.device for share in shares)

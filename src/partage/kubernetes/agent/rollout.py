"""The own node's part in a rollout over a fleet: it waits for a slot, holds it while it changes, frees it.

Nothing is asked of the API server while the node neither waits nor changes. Imported only where a rollout is
configured.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping

from partage.agent.status.status import AgentStatus
from partage.edges.host.own_task import unending
from partage.edges.kube.connection import Backoff
from partage.edges.kube.leases import UNANSWERED, Rollout, SeenRollout, slot_of
from partage.edges.kube.port import Lease
from partage.errors import Conflict, PartageError, Rejected
from partage.plan.cluster.rollout import (
    ROLLOUT,
    KnownFleet,
    Slot,
    Standing,
    Wish,
    canary_of,
    decide,
    needs_slot,
    next_hold,
    next_sightings,
    note_of,
    read_note,
    standing_of,
    written,
)
from partage.plan.report import UNASKED, HeldBack, Report
from partage.values import Frozen

log = logging.getLogger(__name__)


class RolloutIntervals(Frozen):
    """In seconds.

    renew_s: between two renewals of the own slot; a quarter of what it lasts.
    jitter_s: up to so long before a slot is taken that many nodes wait for.
    retry_s, retry_longest_s: between attempts while the API server does not answer.
    """

    renew_s: float = 30.0
    jitter_s: float = 1.0
    retry_s: float = 1.0
    retry_longest_s: float = 30.0


class RolloutMember:
    """Answers whether the node may change (``may_change``), and does what that takes.

    judge_again: called when the answer has changed. ask: asks for a turn. trouble: why the rollout cannot be
    followed now; empty if it can, or need not be.
    """

    def __init__(
        self,
        rollout: Rollout,
        name: str,
        status: AgentStatus,
        *,
        judge_again: Callable[[], None],
        ask: Callable[[], None],
        intervals: RolloutIntervals | None = None,
    ) -> None:
        self._rollout, self._name, self._status = rollout, name, status
        self._judge_again, self._ask = judge_again, ask
        self._intervals = intervals = intervals or RolloutIntervals()
        self._retry = Backoff(intervals.retry_s, intervals.retry_longest_s)
        self._news = asyncio.Event()
        self._lease: Lease | None = None
        self._renewed_s = -math.inf  # the clock may begin with the node
        self._let_go = ""
        self._node_known = asyncio.Event()
        self._held_back = UNASKED
        self._followed: asyncio.Task[None] | None = None
        self._fleet = KnownFleet()
        self._leases: dict[str, Lease] = {}
        self.trouble = ""

    def may_change(self, revision: str) -> HeldBack | None:
        """Whether this policy may be put in force: the node holds a slot for it, renewed in time."""
        if self._lease is not None and slot_of(self._lease).revision == revision and self._is_fresh:
            return None
        return self._held_back

    @property
    def _is_fresh(self) -> bool:
        """Others count the own slot as held."""
        lease = self._lease
        return lease is not None and self._status.clock() - self._renewed_s < slot_of(lease).lasts_s

    def annotations(self, report: Report) -> Mapping[str, str]:
        """What the own Node says about it."""
        return {ROLLOUT: written(note_of(report, self._let_go))} if report.policy.revision else {}

    def node_seen(self, annotations: Mapping[str, str]) -> None:
        """What the own Node says; at first, what an earlier agent has written there."""
        if not self._node_known.is_set():
            self._node_known.set()
            note = read_note(annotations.get(ROLLOUT, ""))
            if note is not None and note.accepted:
                self._let_go = note.wanted

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(unending("reports for the rollout", self._follow_reports()))
            group.create_task(unending("rollout", self._step_forever(group)))

    async def _follow_reports(self) -> None:
        async for _ in self._status.reports():
            self._news.set()

    async def _step_forever(self, group: asyncio.TaskGroup) -> None:
        await self._node_known.wait()
        found = False
        while True:
            pause_s: float | None
            try:
                if not found:
                    self._find(
                        [lease for lease in await self._rollout.leases() if lease.holder == self._name]
                    )
                    found = True
                pause_s = await self._step(group)
            except PartageError as error:
                self._say(f"the rollout cannot be followed: {error.problems[0].message}")
                await asyncio.sleep(self._retry.pause_s())
                continue
            self._retry.reset()
            self._say("")
            try:
                async with asyncio.timeout(pause_s):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()

    def _find(self, own: list[Lease]) -> None:
        """A slot that an earlier agent of this node has left."""
        if own:
            self._lease = own[0]
            self._judge_again()

    async def _step(self, group: asyncio.TaskGroup) -> float | None:
        """Do what is to be done now. How long there will be nothing else; None: until there is news."""
        report = self._status.report
        if report is None or not report.policy.revision:
            return None
        now = standing_of(report)
        own = slot_of(self._lease) if self._lease is not None else None
        wants = needs_slot(now, self._let_go) and (own is None or own.revision != now.wanted)
        if not wants and (own is None or not own.failure):
            self._follow_no_more()
        elif self._followed is None:
            self._followed = group.create_task(unending("fleet", self._rollout.follow(self._seen)))
        if wants and await self._try(now, report):
            return 0.0
        if own is not None and any(
            slot.name == own.name and slot.holder != self._name for slot in self._fleet.slots
        ):
            await self._look(own.name)  # a person has freed it
        await self._hold(now)
        return self._pause_s(wants=wants)

    def _follow_no_more(self) -> None:
        if self._followed is not None:
            self._followed.cancel()
            self._followed, self._fleet, self._held_back = None, KnownFleet(), UNASKED

    # --- waiting -------------------------------------------------------------------------------

    def _seen(self, seen: SeenRollout) -> None:
        if seen.trouble == UNANSWERED:
            return
        slots = tuple(map(slot_of, seen.leases))
        # After a time without answers nobody can tell who has renewed in it.
        before = {} if self._fleet.trouble else self._fleet.sightings
        sightings = next_sightings(before, slots, self._status.clock())
        self._leases = {lease.name: lease for lease in seen.leases}
        notes = ((node.name, read_note(node.annotations.get(ROLLOUT, ""))) for node in seen.nodes)
        canaries = tuple(canary_of(name, note) for name, note in notes if note is not None)
        self._fleet = KnownFleet(seen.settings, slots, sightings, canaries, seen.trouble)
        self._news.set()

    async def _try(self, now: Standing, report: Report) -> bool:
        """Take a slot, if it is this node's turn. Raises PartageError."""
        slot = self._decide(now, report)
        if isinstance(slot, Slot) and slot.holder != self._name:
            await asyncio.sleep(random.uniform(0, self._intervals.jitter_s))  # noqa: S311 - no secret
            slot = self._decide(now, report)
        if isinstance(slot, HeldBack):
            if slot != self._held_back:
                self._held_back = slot
                self._judge_again()
            return False
        wanted = Slot(slot.name, self._name, now.policy, now.wanted, lasts_s=slot.lasts_s)
        lease = self._lease if self._lease is not None else self._leases[slot.name]
        began_s = self._status.clock()
        try:
            self._lease = await self._rollout.write(lease, wanted)
        except Conflict:  # another one has it, or this answer was lost: what the watch says next decides
            await self._look(lease.name)
            return False
        except Rejected:  # an own one may have been deleted: the next try takes another
            if self._lease is None or await self._look(lease.name):
                raise
            return False
        self._renewed_s = began_s
        log.info("slot taken", extra={"lease": lease.name, "revision": now.wanted})
        self._judge_again()
        return True

    def _decide(self, now: Standing, report: Report) -> Slot | HeldBack:
        settings = self._fleet.settings
        canary = settings is not None and settings.is_canary(report.labels or {})
        wish = Wish(self._name, now.policy, now.wanted, canary)
        return decide(wish, self._fleet, self._status.clock())

    # --- holding -------------------------------------------------------------------------------

    async def _hold(self, now: Standing) -> None:
        """Renew the own slot, say that it has failed, or free it. Raises PartageError."""
        if self._lease is None:
            return
        own = slot_of(self._lease)
        then = next_hold(own, now)
        began_s = self._status.clock()
        if then == own and began_s - self._renewed_s < self._intervals.renew_s:
            return
        try:
            lease = await self._rollout.write(self._lease, then)
        except Rejected:
            if await self._look(own.name):
                raise
            return
        was_fresh, self._renewed_s = self._is_fresh, began_s
        self._lease = lease if then.holder else None
        if not then.holder:
            log.info("slot freed", extra={"lease": own.name, "revision": own.revision})
            self._news.set()
        elif then.failure and then.failure != own.failure:
            log.warning("rollout stopped by this node", extra={"reason": then.failure})
        if not was_fresh:
            self._judge_again()

    async def _look(self, name: str) -> bool:
        """Read the Lease again that somebody else has written or deleted. Whether it is as it is known.
        Raises PartageError.
        """
        found = next((lease for lease in await self._rollout.leases() if lease.name == name), None)
        if found is not None and found.holder == self._name:
            known, self._lease = self._lease == found, found
            self._judge_again()
            return known
        if self._lease is not None:
            own = slot_of(self._lease)
            log.warning("slot lost", extra={"lease": name, "holder": found.holder if found else None})
            self._lease = None
            if own.failure:
                self._let_go = own.revision
            self._ask()
            self._news.set()
        return False

    def _pause_s(self, *, wants: bool) -> float | None:
        now_s = self._status.clock()
        due_s = [self._renewed_s + self._intervals.renew_s] if self._lease is not None else []
        if wants and (next_s := self._fleet.next_due_s(now_s)) is not None:
            due_s.append(next_s)
        return max(0.0, min(due_s) - now_s) if due_s else None

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble:
                log.warning("rollout cannot be followed", extra={"reason": trouble})
            self._ask()

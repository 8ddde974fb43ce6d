"""A rollout as a person sees and steers it, with the rights of that person in the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Literal

from msgspec.structs import replace

from partage.answers.documents.document import Document
from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.config import ClusterConfig
from partage.edges.kube.leases import UNANSWERED, Rollout, RolloutPlace, SeenRollout, slot_of
from partage.edges.kube.port import Lease
from partage.errors import Unreachable, Unsatisfiable
from partage.plan.cluster.rollout import ROLLOUT, NodePhase, RolloutNote, RolloutSettings, Slot, read_note
from partage.values import Frozen


class RolloutNodeRow(Frozen):
    """One node. in_force, wanted: revisions of its policy. canary: it changes first. lease: the slot that it
    holds; null: none. why: it is not done.
    """

    name: str
    canary: bool
    policy: str
    in_force: str
    wanted: str
    phase: NodePhase
    lease: str | None
    why: str


class SlotRow(Frozen):
    """One Lease. node: that holds it; empty: free. renewed_at: RFC 3339, by the clock of that node. failure:
    why the node could not change; empty: it has not failed.
    """

    name: str
    node: str
    revision: str
    renewed_at: str
    failure: str


class RolloutDocument(Document, kw_only=True):
    """The answer. done: every node has what it wants. paused_by: ``chart``, ``hand``; null: it is not paused.
    stopped: why no further node begins; null: it has not stopped. freed: Leases that ``resume`` has freed.
    """

    kind: Literal["Rollout"] = "Rollout"
    namespace: str
    name: str
    max_changing: int
    canary: str
    paused_by: Literal["chart", "hand"] | None
    stopped: str | None
    done: bool
    nodes: tuple[RolloutNodeRow, ...]
    slots: tuple[SlotRow, ...]
    freed: tuple[str, ...] = ()


RENEWED_WITHIN_S = 45.0
"""An agent renews its slot every 30 s."""

Say = Callable[[str], None]


class RolloutView:
    """One rollout. All calls raise ClusterError."""

    def __init__(self, config: ClusterConfig, place: RolloutPlace) -> None:
        self._place = place
        self._rollout = Rollout(ApiCluster(config, "partage-cli"), place)

    async def look(self) -> RolloutDocument:
        """How it stands now."""
        settings = await self._rollout.settings()
        leases, nodes = await asyncio.gather(self._rollout.leases(), self._rollout.nodes())
        return self._document(
            SeenRollout(settings.settings, settings.paused_by_hand, leases, nodes, trouble="")
        )

    async def follow(self, tell: Callable[[RolloutDocument], None]) -> RolloutDocument:
        """Until it is done or has stopped; ``tell`` gets each state that differs from the one before."""
        news: asyncio.Queue[SeenRollout] = asyncio.Queue()
        watch = asyncio.create_task(self._rollout.follow(news.put_nowait, all_nodes=True))
        last: RolloutDocument | None = None
        try:
            while True:
                seen = await news.get()
                while not news.empty():
                    seen = news.get_nowait()
                if seen.trouble == UNANSWERED:
                    continue
                if seen.trouble or seen.settings is None:
                    raise Unreachable(f"the rollout cannot be followed: {seen.trouble}")
                now = self._document(seen)
                if now != last:
                    tell(now)
                    last = now
                if now.done or now.stopped:
                    return now
        finally:
            watch.cancel()
            await asyncio.wait([watch])

    async def pause(self) -> RolloutDocument:
        """No further node begins; those that change go on."""
        await self._rollout.pause(paused=True)
        return await self.look()

    async def resume(self, say: Say, *, wait_s: float = RENEWED_WITHIN_S) -> RolloutDocument:
        """Let it go on: it is not paused by hand any more, and slots of nodes that have failed are free, also
        those whose agents do not renew them for ``wait_s`` seconds. Raises Unsatisfiable where the chart
        pauses it.
        """
        seen = await self._rollout.settings()
        if seen.paused_by_hand:
            await self._rollout.pause(paused=False)
        freed = await self._free_failed(say, wait_s)
        document = await self.look()
        if document.paused_by == "chart":
            raise Unsatisfiable(
                f"the ConfigMap {self._place.namespace}/{self._place.name} itself says paused: true",
                "set rollout.paused=false in the values of the chart, and upgrade it",
            )
        return replace(document, freed=freed)

    async def _free_failed(self, say: Say, wait_s: float) -> tuple[str, ...]:
        before = {held.name: held for held in await self._rollout.leases()}
        doubtful = [held for held in before.values() if _may_be_silent(held, wait_s)]
        if doubtful:
            names = ", ".join(held.holder for held in doubtful)
            say(f"looking for {wait_s:g} s whether the agent of {names} renews its Lease")
            await asyncio.sleep(wait_s)
        freed = []
        for lease in await self._rollout.leases():
            slot, old = slot_of(lease), before.get(lease.name)
            unchanged = old is not None and old.renewed_at == lease.renewed_at
            if slot.failure or (old in doubtful and unchanged):
                await self._rollout.write(lease, Slot(slot.name, lasts_s=slot.lasts_s))
                freed.append(lease.name)
        return tuple(freed)

    def _document(self, seen: SeenRollout) -> RolloutDocument:
        settings = seen.settings or RolloutSettings()
        slots = tuple(map(slot_of, seen.leases))
        notes = {node.name: read_note(node.annotations.get(ROLLOUT, "")) for node in seen.nodes}
        canaries = {node.name for node in seen.nodes if settings.is_canary(node.labels)}
        known = {name: note for name, note in sorted(notes.items()) if note is not None}
        rows = tuple(_row(name, note, slots, canary=name in canaries) for name, note in known.items())
        paused_by: Literal["chart", "hand"] | None = None
        if settings.paused:
            paused_by = "hand" if seen.paused_by_hand else "chart"
        return RolloutDocument(
            namespace=self._place.namespace,
            name=self._place.name,
            max_changing=settings.max_changing,
            canary=settings.canary_text,
            paused_by=paused_by,
            stopped=_stopped(slots, known.values()),
            done=all(row.phase is NodePhase.DONE for row in rows) and not any(slot.holder for slot in slots),
            nodes=rows,
            slots=tuple(
                SlotRow(slot.name, slot.holder, slot.revision, lease.renewed_at, slot.failure)
                for slot, lease in zip(slots, seen.leases, strict=True)
            ),
        )


def _stopped(slots: tuple[Slot, ...], notes: Iterable[RolloutNote]) -> str | None:
    """Why it has stopped: a node says that it has failed, or others that nothing is heard of it."""
    for slot in slots:
        if slot.failure:
            return f"node {slot.holder}: {slot.failure}"
    if any(slot.holder for slot in slots):
        return next((note.why for note in notes if note.stopped), None)
    return None


def _row(name: str, note: RolloutNote, slots: tuple[Slot, ...], *, canary: bool) -> RolloutNodeRow:
    lease = next((slot.name for slot in slots if slot.holder == name), None)
    phase, why = note.phase, note.why
    if lease and phase is NodePhase.WAITING:  # it has not yet said that its turn has come
        phase, why = NodePhase.CHANGING, ""
    return RolloutNodeRow(name, canary, note.policy, note.in_force, note.wanted, phase, lease, why)


def _may_be_silent(lease: Lease, renewed_within_s: float) -> bool:
    """By the clock of this machine, which may be wrong: so it is only looked at more closely."""
    if not lease.holder or slot_of(lease).failure:
        return False
    try:
        renewed = datetime.fromisoformat(lease.renewed_at)
    except ValueError:
        return True
    return abs((datetime.now(UTC) - renewed).total_seconds()) > renewed_within_s

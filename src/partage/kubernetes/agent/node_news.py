"""Tells the cluster how the own Node is: its conditions, and events. Nothing waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from partage.agent.status.status import AgentStatus
from partage.edges.host.own_task import unending
from partage.edges.kube.connection import Backoff
from partage.edges.kube.port import (
    Cluster,
    ClusterEvent,
    ClusterNode,
    ObjectReference,
    WatchState,
)
from partage.errors import Conflict, PartageError, Rejected, Unreachable
from partage.kubernetes.agent.node_writer import ClusterIntervals
from partage.kubernetes.decide.events import EventBudget, NodeEvent, node_events, with_uids
from partage.model.node_labels import NodeCondition
from partage.model.share import CheckpointHolds
from partage.plan.cluster.conditions import node_conditions
from partage.plan.report import Report

log = logging.getLogger(__name__)

MOST_WAITING = 64
"""Events that wait for an API server that is away; older ones are dropped."""


class NodeNews:
    """Writes conditions when they change or are gone, and events as they happen.

    watched: the own Node as it was seen last. trouble: why that does not work now; empty if it does. ask:
    called when ``trouble`` changes. holds: reads the kubelet's checkpoint, which has the UIDs of pods; may
    raise Unreachable.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        status: AgentStatus,
        *,
        watched: Callable[[], WatchState],
        ask: Callable[[], None],
        intervals: ClusterIntervals | None = None,
        holds: Callable[[], CheckpointHolds] = dict,
    ) -> None:
        self._cluster, self._name, self._status, self._watched = cluster, name, status, watched
        self._ask, self._holds = ask, holds
        self._intervals = intervals = intervals or ClusterIntervals()
        self._contest = Backoff(intervals.contested_s, intervals.contested_longest_s)
        self._queue: deque[NodeEvent] = deque(maxlen=MOST_WAITING)
        self._queued, self._look = asyncio.Event(), asyncio.Event()
        self._budget = EventBudget()
        self._wanted: tuple[NodeCondition, ...] = ()
        self._written: dict[str, NodeCondition] = {}
        self._written_at = "", ""
        self._troubles: dict[str, str] = {}

    @property
    def trouble(self) -> str:
        """Why the cluster is not told; empty if it is."""
        return "; ".join(filter(None, self._troubles.values()))

    def node_seen(self) -> None:
        """The watch has said something: the Node may be another, or have lost its conditions."""
        self._look.set()

    def tell(self, events: Iterable[NodeEvent]) -> None:
        """Make these events known, as far as there are not too many."""
        for event in events:
            self._budget, taken = self._budget.take(event, self._status.clock())
            if taken is not None:
                self._queue.append(taken)
                self._queued.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(unending("news of reports", self._read_reports()))
            group.create_task(unending("record events", self._record_forever()))
            group.create_task(unending("write conditions", self._write_forever()))

    async def _read_reports(self) -> None:
        last: Report | None = None
        async for now in self._status.reports():
            self.tell(await self._identified(node_events(last, now), now))
            last, wanted = now, node_conditions(now)
            if wanted != self._wanted:
                self._wanted = wanted
                self._look.set()

    async def _identified(self, events: tuple[NodeEvent, ...], now: Report) -> tuple[NodeEvent, ...]:
        """With the UIDs of their pods, as far as they are known."""
        if all(event.about is None for event in events):
            return events
        try:
            holds = await asyncio.to_thread(self._holds)
        except Unreachable:
            return events
        return with_uids(events, now.entries, holds)

    # --- events --------------------------------------------------------------------------------

    async def _record_forever(self) -> None:
        retry = Backoff(self._intervals.retry_s, self._intervals.retry_longest_s)
        while True:
            await self._queued.wait()
            if not self._queue:
                self._queued.clear()
                continue
            node = self._watched().node
            if node is None:  # the Node's part of ``trouble`` is told by its labels
                await asyncio.sleep(retry.pause_s())
                continue
            event = self._queue[0]
            try:
                await self._cluster.record(_cluster_event(event, node))
            except Rejected as error:  # again it would be refused again: the pod's namespace has gone
                self._say("events", error)
            except PartageError as error:
                self._say("events", error)
                await asyncio.sleep(retry.pause_s())
                continue
            else:
                self._say("events", None)
                retry.reset()
            if self._queue and self._queue[0] is event:  # else it has been dropped meanwhile
                self._queue.popleft()

    # --- conditions ----------------------------------------------------------------------------

    async def _write_forever(self) -> None:
        retry = Backoff(self._intervals.retry_s, self._intervals.retry_longest_s)
        while True:
            await self._look.wait()
            await asyncio.sleep(self._intervals.settle_s)
            self._look.clear()
            try:
                pause_s = await self._write()
            except PartageError as error:
                self._say("conditions", error)
                refused = isinstance(error, Rejected) and not isinstance(error, Conflict)
                pause_s = self._intervals.contested_longest_s if refused else retry.pause_s()
                self._look.set()
            else:
                self._say("conditions", None)
                retry.reset()
            await asyncio.sleep(pause_s)

    async def _write(self) -> float:
        """Write the conditions that are not there. How long to wait before others are written, in seconds."""
        state = self._watched()
        node = state.node
        if node is None or state.trouble:
            return 0.0
        there = {present.type: present for present in node.conditions}
        if self._written_at == (node.uid, node.version):  # the watch has not told yet what was written
            there |= self._written
        missing = [wanted for wanted in self._wanted if not _is_there(wanted, there.get(wanted.type))]
        if not missing:
            return 0.0
        repeated = all(_is_there(wanted, self._written.get(wanted.type)) for wanted in missing)
        for wanted in missing:
            before = there.get(wanted.type)
            condition = _since(wanted, before)
            await self._cluster.set_condition(self._name, condition)
            self._written[wanted.type] = condition
            self._written_at = node.uid, node.version
            log.info("condition written", extra={"type": wanted.type, "reason": wanted.reason})
        if repeated:
            return self._contest.pause_s()
        self._contest.reset()
        return self._intervals.retry_s

    def _say(self, what: str, error: PartageError | None) -> None:
        text = f"{what} are not written: {error.problems[0].message}" if error else ""
        if text != self._troubles.get(what, ""):
            self._troubles[what] = text
            if text:
                log.warning("the cluster is not told", extra={"reason": text})
            self._ask()


def _is_there(wanted: NodeCondition, found: NodeCondition | None) -> bool:
    return found is not None and replace(found, changed_at="") == wanted


def _since(wanted: NodeCondition, before: NodeCondition | None) -> NodeCondition:
    """With the time of its last change, if its status has not changed now."""
    if before is None or before.status != wanted.status:
        return wanted
    return replace(wanted, changed_at=before.changed_at)


def _cluster_event(event: NodeEvent, node: ClusterNode) -> ClusterEvent:
    about = ObjectReference("Node", node.name, node.uid)
    if event.about is not None:
        about = ObjectReference("Pod", event.about.name, event.about.uid, event.about.namespace)
    note = event.note if event.about is None else f"node {node.name}: {event.note}"
    return ClusterEvent(about, event.reason, note, event.action, "Warning" if event.warning else "Normal")

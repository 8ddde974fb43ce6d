"""Keeps the taints of the own Node that were asked for, and takes them away at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from partage.agent.status.status import AgentStatus
from partage.edges.host.own_task import bounded, unending
from partage.edges.kube.connection import Backoff
from partage.edges.kube.port import Cluster, ClusterNode, Taint, WatchState
from partage.errors import Conflict, PartageError
from partage.kubernetes.agent.node_writer import ClusterIntervals
from partage.model.node_labels import NO_SCHEDULE, NodeTaint
from partage.plan.cluster.conditions import node_taints

log = logging.getLogger(__name__)

LEAVE_S = 2.0
"""How long the end of the agent waits for the API server, in seconds. A taint that stays is in the docs."""


class NodeTaints:
    """Sets and takes away taints when the report changes, or when someone else has changed them.

    asked: which; those that are not asked for are taken away where they are found. watched: the own Node as
    it was seen last. trouble: why that does not work now; empty if it does. ask: called when it changes.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        status: AgentStatus,
        *,
        asked: Collection[NodeTaint],
        watched: Callable[[], WatchState],
        ask: Callable[[], None],
        intervals: ClusterIntervals | None = None,
    ) -> None:
        self._cluster, self._name, self._status, self._asked = cluster, name, status, asked
        self._watched, self._ask = watched, ask
        self._intervals = intervals = intervals or ClusterIntervals()
        self._retry = Backoff(intervals.retry_s, intervals.retry_longest_s)
        self._contest = Backoff(intervals.contested_s, intervals.contested_longest_s)
        self._look = asyncio.Event()
        self._wanted: Mapping[NodeTaint, bool] = {}
        self._written: tuple[str, Mapping[NodeTaint, bool]] | None = None
        self.trouble = ""

    def node_seen(self) -> None:
        """The watch has said something."""
        self._look.set()

    async def run(self) -> None:
        """Until it is cancelled; then the taints are taken away."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(unending("taints of reports", self._read_reports()))
                group.create_task(unending("write taints", self._write_forever()))
        finally:
            await self._leave()

    async def _read_reports(self) -> None:
        async for report in self._status.reports():
            wanted = node_taints(report, self._asked)
            if wanted != self._wanted:
                self._wanted = wanted
                self._look.set()

    async def _write_forever(self) -> None:
        while True:
            await self._look.wait()
            await asyncio.sleep(self._intervals.settle_s)
            self._look.clear()
            try:
                pause_s = await self._write()
            except PartageError as error:
                # A Node that has changed meanwhile is no trouble: the watch tells how it is now.
                self._say("" if isinstance(error, Conflict) else error.problems[0].message)
                pause_s = self._retry.pause_s()
                self._look.set()
            else:
                self._say("")
                self._retry.reset()
            await asyncio.sleep(pause_s)

    async def _write(self) -> float:
        """Write the taints if others are there. How long to wait before the next time, in seconds."""
        state = self._watched()
        if state.node is None or state.trouble or (taints := _with(state.node, self._wanted)) is None:
            return 0.0
        wanted = state.node.uid, self._wanted
        await self._cluster.set_taints(state.node, taints)
        again, self._written = self._written == wanted, wanted
        log.info(
            "taints written",
            extra={"taints": sorted(kind for kind, is_set in self._wanted.items() if is_set)},
        )
        if again:  # someone else has undone it
            return self._contest.pause_s()
        self._contest.reset()
        return self._intervals.retry_s

    async def _leave(self) -> None:
        """A Node without an agent is not left tainted: nobody would take that away."""
        node = self._watched().node
        none = dict.fromkeys(NodeTaint, False)
        if node is None or _with(node, none) is None:
            return
        try:
            await bounded(self._take_away(none), LEAVE_S)
        except (PartageError, TimeoutError) as error:
            reason = str(error) or f"no answer within {LEAVE_S:g} s"
            log.warning("taints stay on the Node", extra={"reason": reason})

    async def _take_away(self, none: Mapping[NodeTaint, bool]) -> None:
        node = await self._cluster.node(self._name)
        if (taints := _with(node, none)) is not None:
            await self._cluster.set_taints(node, taints)

    def _say(self, reason: str) -> None:
        text = f"taints are not written: {reason}" if reason else ""
        if text != self.trouble:
            self.trouble = text
            if text:
                log.warning("the Node is not tainted as asked", extra={"reason": reason})
            self._ask()


def _with(node: ClusterNode, wanted: Mapping[NodeTaint, bool]) -> tuple[Taint, ...] | None:
    """The taints of the Node with these; None if it has them. Those of others stay as they are."""
    changed = {
        kind
        for kind, is_set in wanted.items()
        if is_set != any((taint.key, taint.effect) == (kind.key, NO_SCHEDULE) for taint in node.taints)
    }
    if not changed:
        return None
    keys = {kind.key for kind in changed}
    kept = [
        taint
        for taint in node.taints
        if (taint.key, taint.effect) not in {(key, NO_SCHEDULE) for key in keys}
    ]
    return (*kept, *(Taint(kind.key, NO_SCHEDULE) for kind in sorted(changed) if wanted[kind]))

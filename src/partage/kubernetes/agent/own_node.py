"""All that the agent does in a cluster, as one task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from partage.agent.status.status import AgentStatus
from partage.edges.host.own_task import unending
from partage.edges.kube.port import Cluster, ClusterNode, WatchState
from partage.kubernetes.agent.node_news import NodeNews
from partage.kubernetes.agent.node_taints import NodeTaints
from partage.kubernetes.agent.node_writer import ClusterIntervals, NodeWriter, PodNotes
from partage.kubernetes.agent.pod_drain import PodDrain
from partage.model.node_labels import NodeTaint, WrittenLabels
from partage.model.share import CheckpointHolds

if TYPE_CHECKING:
    from partage.kubernetes.agent.rollout import RolloutMember


class OwnNode:
    """Follows the own Node, and keeps it up to date. ask: asks for a turn. know: told the Node, at first
    and whenever it changes. taints: which are asked for. writes: which labels. holds: see ``NodeNews``.
    rollout: its part in a rollout over a fleet, where there is one. intervals: None: the usual ones.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        status: AgentStatus,
        ask: Callable[[], None],
        *,
        know: Callable[[ClusterNode], None],
        taints: Collection[NodeTaint] = (),
        writes: WrittenLabels = WrittenLabels.ALL,
        holds: Callable[[], CheckpointHolds] = dict,
        rollout: RolloutMember | None = None,
        intervals: ClusterIntervals | None = None,
    ) -> None:
        self._know = know
        self.rollout = rollout
        more = rollout.annotations if rollout is not None else None
        self.labels = NodeWriter(
            cluster, name, status, ask, intervals, know=self._seen, writes=writes, annotations=more
        )

        def watched() -> WatchState:
            return self.labels.watched

        self.news = NodeNews(
            cluster, name, status, watched=watched, ask=ask, holds=holds, intervals=intervals
        )
        self.taints = NodeTaints(
            cluster, name, status, asked=taints, watched=watched, ask=ask, intervals=intervals
        )
        self.notes = PodNotes(cluster, status)
        self.drain = PodDrain(cluster, name, status, tell=self.news.tell, ask=ask, intervals=intervals)

    def _seen(self, node: ClusterNode) -> None:
        if self.rollout is not None:
            self.rollout.node_seen(node.annotations)
        self._know(node)
        self.news.node_seen()
        self.taints.node_seen()

    @property
    def trouble(self) -> str:
        """Why the Node is not kept up to date; empty if it is."""
        parts = (self.labels, self.news, self.taints, self.drain, *((self.rollout,) if self.rollout else ()))
        return "; ".join(filter(None, (part.trouble for part in parts)))

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(unending("own node", self.labels.run()))
            group.create_task(unending("news of the node", self.news.run()))
            group.create_task(unending("taints", self.taints.run()))
            group.create_task(unending("drain", self.drain.run()))
            group.create_task(unending("notes on pods", self.notes.run()))
            if self.rollout is not None:
                group.create_task(unending("rollout", self.rollout.run()))

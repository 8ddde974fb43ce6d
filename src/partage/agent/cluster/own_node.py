"""All that the agent does in a cluster, as one task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from partage.agent.cluster.node_news import NodeNews
from partage.agent.cluster.node_writer import NodeWriter
from partage.agent.cluster.pod_drain import PodDrain
from partage.agent.status.status import AgentStatus
from partage.edges.kube.port import Cluster, ClusterNode


class OwnNode:
    """Follows the own Node, and keeps it up to date. ask: asks for a turn. know: told the Node, at first
    and whenever it changes.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        status: AgentStatus,
        ask: Callable[[], None],
        *,
        know: Callable[[ClusterNode], None],
    ) -> None:
        self._know = know
        self.labels = NodeWriter(cluster, name, status, ask, know=self._seen)
        self.news = NodeNews(cluster, name, status, watched=lambda: self.labels.watched, ask=ask)
        self.drain = PodDrain(cluster, name, status, tell=self.news.tell, ask=ask)

    def _seen(self, node: ClusterNode) -> None:
        self._know(node)
        self.news.node_seen()

    @property
    def trouble(self) -> str:
        """Why the Node is not kept up to date; empty if it is."""
        return "; ".join(filter(None, (self.labels.trouble, self.news.trouble, self.drain.trouble)))

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.labels.run(), name="own node")
            group.create_task(self.news.run(), name="news of the node")
            group.create_task(self.drain.run(), name="drain")

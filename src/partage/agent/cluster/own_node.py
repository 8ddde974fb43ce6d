"""All that the agent does in a cluster, as one task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from partage.agent.cluster.node_labels import NodeLabels
from partage.agent.cluster.node_news import NodeNews
from partage.agent.status.status import AgentStatus
from partage.edges.kube.port import Cluster


class OwnNode:
    """Follows the own Node, and keeps it up to date. ask: asks for a turn."""

    def __init__(self, cluster: Cluster, name: str, status: AgentStatus, ask: Callable[[], None]) -> None:
        self.labels = NodeLabels(cluster, name, status, ask)
        self.news = NodeNews(cluster, name, status, watched=lambda: self.labels.watched, ask=ask)
        self.labels.followers.append(self.news.node_seen)

    @property
    def trouble(self) -> str:
        """Why the Node is not kept up to date; empty if it is."""
        return "; ".join(filter(None, (self.labels.trouble, self.news.trouble)))

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.labels.run(), name="own node")
            group.create_task(self.news.run(), name="news of the node")

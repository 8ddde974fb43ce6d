"""The agent's connection to its cluster: nothing is known there before it is made, nor without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from partage.agent.options import AgentOptions
from partage.agent.status.status import AgentStatus
from partage.edges.kubelet.checkpoint import CheckpointFile
from partage.model.ids import GpuUuid
from partage.model.node_labels import WrittenLabels
from partage.plan.report import UNASKED, HeldBack

if TYPE_CHECKING:
    from partage.edges.kube.cluster import ApiCluster
    from partage.edges.kube.config import ClusterConfig
    from partage.edges.kube.port import ClusterNode
    from partage.kubernetes.agent.node_writer import ClusterIntervals
    from partage.kubernetes.agent.own_node import OwnNode
    from partage.kubernetes.agent.rollout import RolloutMember


class ClusterConnection(Struct):
    """Made after the start. know: told what the own Node says. judge_again: the rollout may have moved on.

    ask: for a turn of the loop. intervals: None: the usual ones.
    """

    options: AgentOptions
    status: AgentStatus
    ask: Callable[[], None]
    know: Callable[[ClusterNode], None]
    judge_again: Callable[[], None]
    own_node: OwnNode | None = None
    intervals: ClusterIntervals | None = None

    async def run(self, config: ClusterConfig, pause_s: float) -> None:
        """Keep the own Node up to date, ``pause_s`` after the first turn, which must not wait for it."""
        await self.status.until(lambda report: bool(report.made.number))
        await asyncio.sleep(pause_s)
        own_node = self.own_node = await asyncio.to_thread(self._new_own_node, config)
        await own_node.run()

    @property
    def trouble(self) -> str:
        """Why the Node cannot be kept up to date; empty if it can."""
        return self.own_node.trouble if self.own_node else ""

    @property
    def gave_up(self) -> Mapping[GpuUuid, str]:
        """The GPUs whose pods could not be asked to leave, with why."""
        return self.own_node.drain.gave_up if self.own_node else {}

    @property
    def spared(self) -> Mapping[GpuUuid, str]:
        """The GPUs that wait for pods which are not asked to leave, with which and why."""
        return self.own_node.drain.spared if self.own_node else {}

    @property
    def other_writer(self) -> str:
        """Who else writes the same labels, a sentence; empty for nobody."""
        return self.own_node.labels.other_writer if self.own_node else ""

    def may_change(self, revision: str) -> HeldBack | None:
        """Why the rollout holds this policy back; None: it does not. Until the cluster is asked, what is in
        force stays.
        """
        rollout = self.own_node.rollout if self.own_node is not None else None
        return rollout.may_change(revision) if rollout is not None else UNASKED

    def _new_own_node(self, config: ClusterConfig) -> OwnNode:
        """Importing the client takes a tenth of a second: pods are served meanwhile."""
        from partage.edges.kube.cluster import ApiCluster
        from partage.kubernetes.agent.own_node import OwnNode

        cluster = ApiCluster(config, self.options.node_name)
        rollout = self._new_rollout(cluster, config) if self.options.rollout else None
        return OwnNode(
            cluster,
            self.options.node_name,
            self.status,
            self.ask,
            know=self.know,
            taints=self.options.taints,
            writes=WrittenLabels.NONE if self.options.features_file else self.options.labels,
            holds=lambda: CheckpointFile(self.options.kubelet_dir).held() or {},
            rollout=rollout,
            intervals=self.intervals,
        )

    def _new_rollout(self, cluster: ApiCluster, config: ClusterConfig) -> RolloutMember:
        from partage.edges.kube.leases import Rollout, RolloutPlace
        from partage.kubernetes.agent.rollout import RolloutMember

        namespace, _, name = self.options.rollout.rpartition("/")
        rollout = Rollout(cluster, RolloutPlace(namespace or config.namespace, name))
        return RolloutMember(
            rollout, self.options.node_name, self.status, judge_again=self.judge_again, ask=self.ask
        )

"""Keeps the labels of the own Node, and the annotation with its pending plan. Nothing waits for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from partage.agent.status.status import AgentStatus
from partage.agent.waiting import wait_at_most
from partage.edges.files.catalogue import geometry_of
from partage.edges.kube.backoff import Backoff
from partage.edges.kube.port import Cluster, ClusterNode, WatchState
from partage.errors import PartageError
from partage.model.gpu import NoDriver
from partage.model.node_labels import MIG_CONFIG_STATE
from partage.plan.cluster.pending import PLAN, PendingGpu, pending_gpus, plan_annotation
from partage.plan.labels import Labels, node_labels
from partage.plan.report import Report
from partage.values import Frozen

log = logging.getLogger(__name__)


class ClusterIntervals(Frozen):
    """In seconds.

    settle_s: how long labels wait for more changes: a new policy changes GPU after GPU.
    retry_s, retry_longest_s: between attempts to write them; each pause is twice the one before.
    contested_s, contested_longest_s: the same, while someone else writes other values.
    stood_s: labels that stood so long are not contested.
    drain_s, drain_longest_s: between requests to evict pods that are still there.
    drain_confirm_s: between the question for the pods of the node and their eviction: the kubelet has been
    asked meanwhile which of them hold shares (``holders_waited_s``).
    """

    settle_s: float = 1.0
    retry_s: float = 1.0
    retry_longest_s: float = 60.0
    contested_s: float = 5.0
    contested_longest_s: float = 600.0
    stood_s: float = 600.0
    drain_s: float = 5.0
    drain_longest_s: float = 60.0
    drain_confirm_s: float = 5.0


class NodeWriter:
    """Follows the own Node, and applies its labels: at the start, when they change, and when they are gone.

    trouble: why that does not work now; empty if it does. ask: called when ``trouble`` changes. know: told
    the Node, at first and whenever it changes.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        status: AgentStatus,
        ask: Callable[[], None],
        intervals: ClusterIntervals | None = None,
        *,
        know: Callable[[ClusterNode], None] = lambda _: None,
    ) -> None:
        self._cluster, self._name, self._status, self._ask, self._know = cluster, name, status, ask, know
        intervals = intervals or ClusterIntervals()
        self._intervals = intervals
        self._retry = Backoff(intervals.retry_s, intervals.retry_longest_s)
        self._contest = Backoff(intervals.contested_s, intervals.contested_longest_s)
        self._news = asyncio.Event()
        self._wanted: Labels | None = None
        self._pending: tuple[PendingGpu, ...] = ()
        self._plan: str | None = None
        self._applied: tuple[Labels, Mapping[str, str]] | None = None
        self._applied_to = ""
        self._applied_s = self._again_s = 0.0
        self.watched = WatchState()
        self.trouble = ""

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.watch_node(self._name, self._seen), name="watch node")
            group.create_task(self._read_reports(), name="labels of reports")
            group.create_task(self._apply_forever(), name="apply labels")

    def _seen(self, state: WatchState) -> None:
        self.watched = state
        self._news.set()
        if state.node is not None:
            self._know(state.node)

    async def _read_reports(self) -> None:
        last: Report | None = None
        while True:
            last = await self._status.until(lambda report: report is not last)  # noqa: B023 - asked at once
            labels, pending = labels_of(last), pending_gpus(last)
            if labels is not None and (labels, pending) != (self._wanted, self._pending):
                self._wanted, self._pending = labels, pending
                self._news.set()

    async def _apply_forever(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(self._intervals.settle_s)
            self._news.clear()
            try:
                pause_s = await self._apply()
            except PartageError as error:
                self._say(f"labels are not applied: {error.problems[0].message}")
                pause_s = self._retry.pause_s()
            if pause_s:
                await wait_at_most(self._news, pause_s)
                self._news.set()

    async def _apply(self) -> float:
        """Apply the labels if they are not there. How long to wait before the next attempt; 0: none is
        needed.
        """
        state, labels = self.watched, self._wanted
        if state.trouble or state.node is None:
            self._say(state.trouble or f"the cluster has no Node {self._name}: check --node-name")
            return 0.0
        self._say("")
        if labels is None:
            return 0.0
        annotations = self._annotations(state.node)
        wanted = labels, annotations
        if not self._missing(state.node, labels, annotations):
            return 0.0
        contested = self._applied == wanted and self._applied_to == state.node.uid
        if not contested or time.monotonic() - self._applied_s >= self._intervals.stood_s:
            self._contest.reset()
        if contested and time.monotonic() < self._again_s:
            return self._again_s - time.monotonic()
        node = await self._cluster.apply_node(state.node, labels, annotations)
        log.info("labels applied", extra={"node": self._name, "labels": len(labels), "contested": contested})
        self._applied, self._applied_to, self._applied_s = wanted, node.uid, time.monotonic()
        self._again_s = self._applied_s + self._contest.pause_s()
        self._retry.reset()
        if self.watched.node == state.node:  # the watch has not said anything newer yet
            self.watched = replace(self.watched, node=node)
        return 0.0

    def _annotations(self, node: ClusterNode) -> Mapping[str, str]:
        """The pending plan. Since when a GPU waits is what the annotation has said before, also that of an
        earlier agent.
        """
        before = node.annotations.get(PLAN, "") if self._plan is None else self._plan
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._plan = plan_annotation(self._pending, before, now)
        return {PLAN: self._plan} if self._plan else {}

    def _missing(self, node: ClusterNode, labels: Labels, annotations: Mapping[str, str]) -> bool:
        """Whether anything has to be written. At first always: an earlier agent may have left labels."""
        if self._applied != (labels, annotations) or self._applied_to != node.uid:
            return True
        there = {*node.labels.items(), *node.annotations.items()}
        return not there >= {*labels.items(), *annotations.items()}

    def _say(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble:
            log.warning("the cluster cannot be kept up to date", extra={"reason": trouble})
        else:
            log.info("the cluster can be kept up to date again")
        self._ask()


def labels_of(report: Report) -> Labels | None:
    """The labels of what is offered now; None if that is not known: then labels stay as they are."""
    inventory, policy = report.node.inventory, report.policy_in_force
    if policy is None or isinstance(inventory.driver, NoDriver):
        return None
    labels = node_labels(inventory, report.offer, policy.options, geometry_of)
    layout = report.mig_config
    if layout is None:
        return labels
    return None if layout.state is None else {**labels, MIG_CONFIG_STATE: layout.state.value}

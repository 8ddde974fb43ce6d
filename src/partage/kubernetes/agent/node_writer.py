"""Keeps the labels of the own Node, and annotations: its pending plan, and who holds GPU memory. On the pods
it writes what they hold of a GPU's memory, as Alibaba's gpushare does, for its dashboards.

Nothing waits for it. What pods hold is written afterwards, from the ledger; nothing reads it. It takes the
right to patch pods: where the account does not have it, that is said once, and nothing is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from partage.agent.node_labels import labels_of
from partage.agent.status.status import AgentStatus
from partage.agent.supervision import wait_at_most
from partage.edges.host.own_task import unending
from partage.edges.kube.connection import Backoff
from partage.edges.kube.port import Cluster, ClusterNode, WatchState
from partage.errors import Absent, PartageError, Rejected
from partage.model.node_labels import FEATURE_DISCOVERY, WrittenLabels
from partage.plan.cluster.conditions import PLAN, PendingGpu, pending_gpus, plan_annotation
from partage.plan.cluster.gpu_memory import (
    GPU_MEMORY,
    count_shared_gpus,
    memory_annotation,
    node_memory,
    pod_annotations,
)
from partage.plan.labels import Labels
from partage.plan.report import Report
from partage.values import Frozen

log = logging.getLogger(__name__)

TWO_WRITERS = (
    f"the Node has the label {FEATURE_DISCOVERY}, so NVIDIA's feature discovery writes the same labels: "
    "switch it off, or run the agent with --labels own"
)


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
    the Node, at first and whenever it changes. annotations: more of them that a report asks for. writes:
    which labels. other_writer: who else writes the same labels, a sentence; empty for nobody.
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
        writes: WrittenLabels = WrittenLabels.ALL,
        annotations: Callable[[Report], Mapping[str, str]] | None = None,
    ) -> None:
        self._cluster, self._name, self._status, self._ask, self._know = cluster, name, status, ask, know
        intervals = intervals or ClusterIntervals()
        self._intervals = intervals
        self._retry = Backoff(intervals.retry_s, intervals.retry_longest_s)
        self._contest = Backoff(intervals.contested_s, intervals.contested_longest_s)
        self._news = asyncio.Event()
        self._wanted: Labels | None = None
        self._pending: tuple[PendingGpu, ...] = ()
        self._more_of, self._more = annotations, dict[str, str]()
        self._plan: str | None = None
        self._memory = ""
        self._shared_gpus = 0
        self._counted = False
        self._count_refused: str | None = None
        self._applied: tuple[Labels, Mapping[str, str]] | None = None
        self._applied_to = ""
        self._applied_s = self._again_s = 0.0
        self._writes = writes
        self.watched = WatchState()
        self.trouble = self.other_writer = ""

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(unending("watch node", self._cluster.watch_node(self._name, self._seen)))
            group.create_task(unending("labels of reports", self._read_reports()))
            group.create_task(unending("apply labels", self._apply_forever()))

    def _seen(self, state: WatchState) -> None:
        self.watched = state
        self._news.set()
        if state.node is not None:
            self._know(state.node)
            self._look_for_other_writer(state.node)

    def _look_for_other_writer(self, node: ClusterNode) -> None:
        twice = self._writes is WrittenLabels.ALL and FEATURE_DISCOVERY in node.labels
        found = TWO_WRITERS if twice else ""
        if found != self.other_writer:
            self.other_writer = found
            if found:
                log.warning("labels are written twice", extra={"reason": found})
            self._ask()

    async def _read_reports(self) -> None:
        async for report in self._status.reports():
            labels, pending = labels_of(report), pending_gpus(report)
            if labels is not None:
                labels = {key: value for key, value in labels.items() if self._writes.writes(key)}
            held = ((entry.resource, entry.id, entry.holders, entry.claim) for entry in report.entries)
            memory = memory_annotation(node_memory(report.offer, held))
            more = dict(self._more_of(report)) if self._more_of is not None else {}
            news = labels, pending, memory, more
            if labels is not None and news != (self._wanted, self._pending, self._memory, self._more):
                self._wanted, self._pending, self._memory, self._more = news
                self._shared_gpus = count_shared_gpus(report.offer)
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
        await self._count(state.node)
        annotations = self._annotations(state.node)
        wanted = labels, annotations
        if not self._missing(state.node, labels, annotations):
            return 0.0
        contested = self._applied == wanted and self._applied_to == state.node.uid
        if not contested or self._status.clock() - self._applied_s >= self._intervals.stood_s:
            self._contest.reset()
        if contested and self._status.clock() < self._again_s:
            return self._again_s - self._status.clock()
        node = await self._cluster.apply_node(state.node, labels, annotations)
        log.info("labels applied", extra={"node": self._name, "labels": len(labels), "contested": contested})
        self._applied, self._applied_to, self._applied_s = wanted, node.uid, self._status.clock()
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
        found = {PLAN: self._plan, GPU_MEMORY: self._memory}
        return {**self._more, **{key: value for key, value in found.items() if value}}

    async def _count(self, node: ClusterNode) -> None:
        """Say how many GPUs are shared by amounts. What another plugin has written stays."""
        ours = self._counted or GPU_MEMORY in node.annotations
        wanted = str(self._shared_gpus) if self._shared_gpus else ""
        if node.gpu_count in (wanted, self._count_refused) or not (wanted or ours):
            return
        try:
            await self._cluster.set_gpu_count(node.name, self._shared_gpus or None)
        except PartageError as error:  # only dashboards read it: labels go on
            self._count_refused = node.gpu_count
            log.warning("GPUs are not counted", extra={"reason": error.problems[0].message})
        else:
            self._counted, self._count_refused = bool(wanted), None

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


_Pod = tuple[str, str]


class PodNotes:
    """Follows the reports. A pod is written once for what it holds."""

    def __init__(self, cluster: Cluster, status: AgentStatus, backoff: Backoff | None = None) -> None:
        self._cluster, self._status = cluster, status
        self._retry = backoff or Backoff(5.0, 300.0)
        self._written: dict[_Pod, Mapping[str, str]] = {}

    async def run(self) -> None:
        """Until it is cancelled. Where the account may not do it, nothing is written."""
        last: Report | None = None
        while True:
            last = await self._status.until(lambda report: report is not last)  # noqa: B023 - asked at once
            wanted = pod_annotations(last.offer, last.entries, last.node.inventory.memory_of_devices)
            self._written = {pod: said for pod, said in self._written.items() if pod in wanted}
            try:
                await self._write(wanted)
            except Rejected as error:
                log.info("pods are not annotated", extra={"reason": error.problems[0].message})
                await asyncio.Event().wait()  # a task that returns is taken for one that has failed
            except PartageError:  # no answer: said by the others already
                last = None
                await asyncio.sleep(self._retry.pause_s())
            else:
                self._retry.reset()

    async def _write(self, wanted: Mapping[_Pod, Mapping[str, str]]) -> None:
        for pod, said in wanted.items():
            if self._written.get(pod) == said:
                continue
            try:
                await self._cluster.annotate_pod(*pod, said)
            except Absent:  # it has gone meanwhile
                continue
            self._written[pod] = said

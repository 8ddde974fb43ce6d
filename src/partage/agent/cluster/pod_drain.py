"""Evicts the pods that a GPU waits for, where the policy says ``change: drain``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from partage.agent.cluster.node_writer import ClusterIntervals
from partage.agent.status.status import AgentStatus
from partage.agent.supervision import unending
from partage.edges.kube.backoff import Backoff
from partage.edges.kube.port import Cluster, ClusterPod, Eviction
from partage.errors import PartageError
from partage.model.ids import GpuUuid
from partage.plan.cluster.drain import DrainState, next_drain, pods_to_evict
from partage.plan.cluster.events import NodeEvent, PodName
from partage.plan.report import Report

log = logging.getLogger(__name__)

_STATIC = "Node"
"""Owner of the mirror of a static pod: its eviction ends nothing."""


class PodDrain:
    """Follows the reports, and asks pods to leave, again and again until they have or the time is over.

    tell: takes events. ask: asks for a turn. trouble: why no pod can be asked now; empty if they can.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        status: AgentStatus,
        *,
        tell: Callable[[Iterable[NodeEvent]], None],
        ask: Callable[[], None],
        intervals: ClusterIntervals | None = None,
    ) -> None:
        self._cluster, self._name, self._status = cluster, name, status
        self._tell, self._ask = tell, ask
        self._intervals = intervals or ClusterIntervals()
        self._state = DrainState()
        self._draining = asyncio.Event()
        self.trouble = ""

    @property
    def gave_up(self) -> Mapping[GpuUuid, str]:
        """GPUs whose pods have not left in time, and a sentence."""
        return self._state.gave_up

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(unending("what is drained", self._follow()))
            group.create_task(unending("evict pods", self._evict_forever()))

    async def _follow(self) -> None:
        report = await self._status.until(lambda _: True)
        while True:
            self._update(report)
            due_s = self._state.due_s
            try:
                async with asyncio.timeout(None if due_s is None else max(0.0, due_s - self._status.clock())):
                    last = report
                    report = await self._status.until(lambda now: now is not last)  # noqa: B023 - at once
            except TimeoutError:
                continue

    def _update(self, report: Report) -> None:
        before, self._state = self._state, next_drain(self._state, report, self._status.clock())
        if self._state.began_s:
            self._draining.set()
        else:
            self._draining.clear()
        for gpu in self._state.gave_up.keys() - before.gave_up.keys():
            log.warning("drain given up", extra={"gpu": gpu, "reason": self._state.gave_up[gpu]})
        if self._state.gave_up != before.gave_up:
            self._ask()

    async def _evict_forever(self) -> None:
        pause = Backoff(self._intervals.drain_s, self._intervals.drain_longest_s)
        seen: frozenset[PodName] = frozenset()
        while True:
            if not self._draining.is_set():
                seen = frozenset()
                await self._draining.wait()
            try:
                asked, refused = await self._evict()
            except PartageError as error:
                self._say(f"pods are not evicted: {error.problems[0].message}")
            else:
                self._say(f"pods are not evicted: {refused[0]}" if refused else "")
                if not asked <= seen:
                    pause.reset()
                seen = asked
            await asyncio.sleep(pause.pause_s())

    async def _evict(self) -> tuple[frozenset[PodName], list[str]]:
        """Ask the pods to leave that are named before and after the cluster was asked for them. Which, and
        why some could not be asked: the others are asked all the same.

        So a pod that has just taken the name of another one is not mistaken for it: the kubelet does not name
        the old one any more, and an eviction is for the UID that the cluster has told.
        """
        refused: list[str] = []
        first = self._named()
        if not first:
            return first, refused
        pods = {PodName(one.namespace, one.name): one for one in await self._cluster.pods(self._name)}
        await asyncio.sleep(self._intervals.drain_confirm_s)
        both = first & self._named()
        for pod in sorted(both & pods.keys()):
            if _can_leave(pods[pod]):
                try:
                    await self._ask_to_leave(replace(pod, uid=pods[pod].uid))
                except PartageError as error:
                    refused.append(f"{pod.namespace}/{pod.name}: {error.problems[0].message}")
        return both, refused

    def _named(self) -> frozenset[PodName]:
        report = self._status.report
        return pods_to_evict(self._state, report) if report is not None else frozenset()

    async def _ask_to_leave(self, pod: PodName) -> None:
        ending = await self._cluster.evict(pod.namespace, pod.name, uid=pod.uid)
        log.info("pod asked to leave", extra={"pod": f"{pod.namespace}/{pod.name}", "answer": ending.value})
        if ending is Eviction.ACCEPTED:
            note = "evicted: it holds shares of a GPU that changes its sharing"
            self._tell([NodeEvent("DrainedForChange", note, "EvictPod", about=pod)])
        elif ending is Eviction.PROTECTED:
            note = (
                "a GPU waits for this pod to change its sharing; a PodDisruptionBudget forbids its eviction"
            )
            self._tell([NodeEvent("DrainNotAllowed", note, "EvictPod", warning=True, about=pod)])

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble:
                log.warning("pods cannot be drained", extra={"reason": trouble})
            self._ask()


def _can_leave(pod: ClusterPod) -> bool:
    return not pod.ends and pod.owner != _STATIC and pod.phase in ("Pending", "Running")

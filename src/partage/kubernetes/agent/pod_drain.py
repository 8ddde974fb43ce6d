"""Evicts the pods that a GPU waits for, where the policy says ``change: drain``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from partage.agent.status.status import AgentStatus
from partage.edges.host.own_task import unending
from partage.edges.kube.connection import Backoff
from partage.edges.kube.port import Cluster, ClusterPod, Eviction
from partage.errors import PartageError, Rejected
from partage.kubernetes.agent.node_writer import ClusterIntervals
from partage.kubernetes.decide.drain import (
    DrainState,
    NotEvicted,
    RunningPod,
    after_asking,
    drained,
    holders,
    next_drain,
    pods_to_evict,
    spared_pods,
    spared_sentence,
)
from partage.kubernetes.decide.events import NodeEvent, PodName
from partage.model.ids import GpuUuid
from partage.plan.report import Report

log = logging.getLogger(__name__)

_STATIC, _MIRROR = "Node", "kubernetes.io/config.mirror"
"""Owner of the mirror of a static pod, and its annotation: its eviction ends nothing."""

_CRITICAL, _CRITICAL_CLASSES = 2_000_000_000, ("system-cluster-critical", "system-node-critical")
"""From this priority on, pods are the system's own: no other priority class may be higher than 1e9."""


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
        self._pods: Mapping[PodName, RunningPod] = {}
        self._spared: Mapping[GpuUuid, Mapping[PodName, NotEvicted]] = {}
        self._draining = asyncio.Event()
        self.trouble = ""

    @property
    def gave_up(self) -> Mapping[GpuUuid, str]:
        """GPUs whose pods have not left in time, and a sentence."""
        return self._state.gave_up

    @property
    def spared(self) -> Mapping[GpuUuid, str]:
        """GPUs that wait for pods that are not evicted, and which these are: words for a sentence."""
        return {gpu: spared_sentence(pods) for gpu, pods in self._spared.items()}

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
        before, spared = self._state, self._spared
        self._state = next_drain(before, report, self._status.clock(), self._pods)
        self._spared = spared_pods(self._state, report, self._pods)
        if next(drained(self._state, report), None) is not None:
            self._draining.set()
        else:
            self._draining.clear()
        for gpu in self._state.gave_up.keys() - before.gave_up.keys():
            log.warning("drain given up", extra={"gpu": gpu, "reason": self._state.gave_up[gpu]})
        self._tell_spared({pod_and_why for pods in spared.values() for pod_and_why in pods.items()})
        if (self._state.gave_up, self._spared) != (before.gave_up, spared):
            self._ask()

    def _tell_spared(self, known: Collection[tuple[PodName, NotEvicted]]) -> None:
        now = {pod_and_why for pods in self._spared.values() for pod_and_why in pods.items()}
        for pod, why in sorted(now.difference(known)):
            log.info("pod not evicted", extra={"pod": f"{pod.namespace}/{pod.name}", "reason": why.value})
            note = f"a GPU waits for this pod to change its sharing; it is not evicted: it {why}"
            about = replace(pod, uid=self._pods[pod].uid)
            self._tell([NodeEvent("DrainSkipped", note, "KeepPod", about=about)])

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
        the old one any more, and an eviction is for the UID that the cluster has told. Each is decided when
        it is sent: the ones before it may have taken long, and the policy may have been taken back.
        """
        refused: list[str] = []
        first = self._named()
        if not first:
            return first, refused
        found = await self._cluster.pods(self._name)
        self._pods = {
            PodName(leaving.namespace, leaving.name): _running(leaving)
            for leaving in found
            if _can_leave(leaving)
        }
        await asyncio.sleep(self._intervals.drain_confirm_s)
        both = first & self._named()
        for pod in sorted(both):
            if self._may_be_asked(pod):
                try:
                    await self._ask_to_leave(pod)
                except PartageError as error:
                    refused.append(f"{pod.namespace}/{pod.name}: {error.problems[0].message}")
        return both, refused

    def _named(self) -> frozenset[PodName]:
        report = self._status.report
        if report is None:
            return frozenset()
        self._update(report)
        return frozenset[PodName]().union(*map(holders, drained(self._state, report)))

    def _may_be_asked(self, pod: PodName) -> bool:
        """By the newest report, and the policy that is in force by it."""
        report = self._status.report
        if report is None:
            return False
        self._update(report)
        return pod in pods_to_evict(self._state, report, self._pods)

    async def _ask_to_leave(self, name: PodName) -> None:
        report = self._status.report
        assert report is not None, "it says that the pod may be asked"
        pod = replace(name, uid=self._pods[name].uid)
        noted = after_asking(self._state, report, self._pods, name)
        try:
            ending = await self._evicted(name)
        except Rejected:
            raise
        except PartageError:  # it may have arrived
            self._note(noted)
            raise
        said = "taken back" if ending is None else ending.value
        log.info("pod asked to leave", extra={"pod": f"{pod.namespace}/{pod.name}", "answer": said})
        if ending in (Eviction.ACCEPTED, None):
            self._note(noted)
        if ending is Eviction.ACCEPTED:
            note = "evicted: it holds shares of a GPU that changes its sharing"
            self._tell([NodeEvent("DrainedForChange", note, "EvictPod", about=pod)])
        elif ending is Eviction.PROTECTED:
            note = (
                "a GPU waits for this pod to change its sharing; a PodDisruptionBudget forbids its eviction"
            )
            self._tell([NodeEvent("DrainNotAllowed", note, "EvictPod", warning=True, about=pod)])

    async def _evicted(self, name: PodName) -> Eviction | None:
        """The answer to an eviction. None: the pod had not to leave any more before there was one, so that
        the request was given up, which the API server takes for its end.
        """
        asking = self._cluster.evict(name.namespace, name.name, uid=self._pods[name].uid)
        sent = asyncio.create_task(asking, name="evict a pod")
        stays = asyncio.create_task(self._until_it_may_stay(name), name="may the pod stay")
        try:
            await asyncio.wait((sent, stays), return_when=asyncio.FIRST_COMPLETED)
            return sent.result() if sent.done() else stays.result()
        finally:
            sent.cancel()
            stays.cancel()

    async def _until_it_may_stay(self, name: PodName) -> None:
        while self._may_be_asked(name):
            last = self._status.report
            await self._status.until(lambda now: now is not last)  # noqa: B023 - asked at once

    def _note(self, asked: DrainState) -> None:
        """Unless another policy has begun meanwhile."""
        if asked.policy == self._state.policy:
            self._state = replace(self._state, asked=asked.asked)

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble:
                log.warning("pods cannot be drained", extra={"reason": trouble})
            self._ask()


def _can_leave(pod: ClusterPod) -> bool:
    return not pod.ends and pod.phase in ("Pending", "Running")


def _running(pod: ClusterPod) -> RunningPod:
    return RunningPod(
        pod.uid,
        controller=pod.controller,
        static=pod.owner == _STATIC or _MIRROR in pod.annotations,
        critical=pod.priority >= _CRITICAL or pod.priority_class in _CRITICAL_CLASSES,
    )

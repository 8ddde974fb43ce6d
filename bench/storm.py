"""Pods that start while the agent is killed and started again: what is lost or given twice."""

from __future__ import annotations

import heapq
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

from bench.cells import allocate_call, preferred_call, preferred_ids
from bench.client import CallFailed, Client
from bench.node import RESOURCE, sliced, spawn_as_shipped
from tests.agent.harness import AgentProcess, Place, place, registered
from tests.kubelet_script import NotInTime, ScriptedKubelet, held, scripted_kubelet, wait_for

PODS_PER_S = 50
LIFE_S = 4.0
RETRY_S = 0.2
"""A pod that was not admitted is made anew by its controller, about so much later."""
AGREE_WITHIN_S = 15.0


@dataclass
class Pod:
    """One pod that wants one share."""

    name: str
    wanted_s: float
    ids: list[str] = field(default_factory=list)
    admitted_s: float = 0.0


@dataclass
class Storm:
    """What came of it. Microseconds of preferred and Allocate together, seconds for the rest.

    absent: from each kill to the next admission. wrong: answers that were not free ids, or the wrong number.
    disagreeing: ids of which agent and kubelet said another thing in the end.
    """

    wanted: int
    admitted: int
    failed_calls: int
    wrong: int
    longest_wait_s: float
    absent_s: list[float]
    micros: list[float]
    disagreeing: int

    @property
    def p50(self) -> float:
        return statistics.median(self.micros)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.micros, n=100)[98]


class _Manager:
    """The kubelet's device manager: one pod after the other, every id once."""

    def __init__(self, kubelet: ScriptedKubelet, client: Client) -> None:
        self.kubelet = kubelet
        self.client = client
        self.pods: deque[Pod] = deque()
        self.admitted: list[Pod] = []
        self.micros: list[float] = []
        self.failed = self.wrong = 0
        self.between: Callable[[], None] | None = None  # done once, between a pod's two calls
        self._dice = random.Random(2)

    def admit(self, pod: Pod) -> bool:
        """Give the pod a share, if the plugin answers."""
        found = self.kubelet.last(RESOURCE)
        if found is None or found.watch is None or found.watch.ended.is_set():
            return False  # the kubelet has marked all devices unhealthy
        taken = {share for other in self.pods for share in other.ids}
        free = [id_ for id_, health in found.watch.health.items() if health == "Healthy" and id_ not in taken]
        self._dice.shuffle(free)
        socket = self.kubelet.dir / found.request.endpoint
        try:
            prefer = self.client.ask(socket, [preferred_call(free, 1)])
            ids = preferred_ids(prefer.bodies[0])
            if len(ids) != 1 or not set(ids) <= set(free):
                self.wrong += 1
                return False
            if self.between is not None:
                between, self.between = self.between, None
                between()
            allocate = self.client.ask(socket, [allocate_call(ids)])
        except CallFailed:
            self.failed += 1
            return False
        self.micros.append(prefer.micros[0] + allocate.micros[0])
        pod.ids, pod.admitted_s = ids, time.monotonic()
        self.pods.append(pod)
        self.admitted.append(pod)
        self._tell()
        return True

    def end_old(self, now_s: float) -> None:
        """Pods that have lived long enough end; their ids are free at once."""
        before = len(self.pods)
        while self.pods and self.pods[0].admitted_s + LIFE_S < now_s:
            self.pods.popleft()
        if len(self.pods) != before:
            self._tell()

    def _tell(self) -> None:
        """PodResources tells the truth of now."""
        self.kubelet.pod_resources = held(
            {f"bench/{pod.name}": {"main": {RESOURCE: pod.ids}} for pod in self.pods}
        )


class _Agent:
    """An agent that is started again whenever it was killed."""

    def __init__(self, directories: Place) -> None:
        self._directories = directories
        self.process = self._spawn()

    def _spawn(self) -> AgentProcess:
        return spawn_as_shipped(self._directories, policy=sliced(48))

    def kill(self) -> float:
        """SIGKILL; the next one begins at once. Returns when."""
        killed_s = time.monotonic()
        self.process.kill()
        self.process = self._spawn()
        return killed_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()


def storm(client: Client, seconds: float, kills: int) -> Storm:
    """So many pods a second; the agent is killed at even distances, and started again at once."""
    with (
        place() as directories,
        scripted_kubelet(directories.kubelet_dir, directories.pod_resources) as kubelet,
        _Agent(directories) as agent,
    ):
        registered(kubelet, RESOURCE)
        manager = _Manager(kubelet, client)
        killed_s = _let_pods_come(manager, agent, seconds, kills)
        disagreeing = _disagreeing(agent.process, manager)
    admitted = manager.admitted
    return Storm(
        wanted=round(seconds * PODS_PER_S),
        admitted=len(admitted),
        failed_calls=manager.failed,
        wrong=manager.wrong,
        longest_wait_s=max(pod.admitted_s - pod.wanted_s for pod in admitted),
        absent_s=[
            min(pod.admitted_s for pod in admitted if pod.admitted_s > at_s) - at_s for at_s in killed_s
        ],
        micros=manager.micros,
        disagreeing=disagreeing,
    )


def _let_pods_come(manager: _Manager, agent: _Agent, seconds: float, kills: int) -> list[float]:
    """Until every pod has been admitted, or long enough. Returns when the agent was killed.

    It is killed between a pod's two calls, on another thread: Allocate is under way, or finds no agent.
    """
    began_s = time.monotonic()
    pods = [Pod(f"pod-{n}", began_s + n / PODS_PER_S) for n in range(round(seconds * PODS_PER_S))]
    queue = [(pod.wanted_s, pod.name, pod) for pod in pods]
    kill_at = deque(began_s + seconds * (n + 1) / (kills + 1) for n in range(kills))
    killed: list[Future[float]] = []
    with ThreadPoolExecutor(1) as killer:
        while queue and time.monotonic() < began_s + 4 * seconds:
            now_s = time.monotonic()
            if kill_at and kill_at[0] <= now_s:
                kill_at.popleft()
                manager.between = lambda: killed.append(killer.submit(agent.kill))
            manager.end_old(now_s)
            due_s, name, pod = heapq.heappop(queue)
            time.sleep(min(max(0.0, due_s - now_s), 0.02))
            if due_s > time.monotonic():
                heapq.heappush(queue, (due_s, name, pod))
            elif not manager.admit(pod):
                heapq.heappush(queue, (time.monotonic() + RETRY_S, name, pod))
    return [one.result() for one in killed]


def _disagreeing(agent: AgentProcess, manager: _Manager) -> int:
    """How many ids agent and kubelet attribute to different pods, once the agent has had time to ask."""
    truth = {(pod.ids[0], pod.name) for pod in manager.pods}

    def difference() -> set[tuple[str, str]]:
        rows = agent.report().get("held", [])
        said = {(row["id"], holder["pod"]) for row in rows for holder in row["holders"]}
        return said ^ truth

    try:
        wait_for(lambda: not difference(), AGREE_WITHIN_S)
    except NotInTime:
        return len(difference())
    return 0

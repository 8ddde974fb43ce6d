"""Pods as the embedded kubelet and the scheduler of its cluster of one node know them: which are bound, which
wait until they fit, what their containers hold, and their status, in the words of Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from msgspec import field
from msgspec.structs import replace

from partage.model.ids import PodUid, ShareId
from partage.model.pod import Pod
from partage.model.share import ContainerAllocation, DeviceNode, Mount
from partage.values import Frozen


class PodPhase(StrEnum):
    """The phase of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ContainerState(StrEnum):
    """The state of a container."""

    WAITING = "Waiting"
    RUNNING = "Running"
    TERMINATED = "Terminated"


class ContainerStatus(Frozen):
    """One container: what it holds, and what the plugins of all its resources answered.

    ids:     resource name to the devices held.
    reason:  one word why it waits or has ended; message: the same as a sentence; both may be empty.
    """

    name: str
    state: ContainerState = ContainerState.WAITING
    reason: str = ""
    message: str = ""
    restarts: int = 0
    ids: Mapping[str, tuple[ShareId, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


class PodStatus(Frozen):
    """The status of a pod.

    containers: in the pod's order, init containers first; empty where the pod was refused.
    uid:        empty where it was never admitted.
    """

    pod: Pod
    phase: PodPhase
    reason: str = ""
    message: str = ""
    containers: tuple[ContainerStatus, ...] = ()
    uid: PodUid = PodUid("")

    @property
    def holds(self) -> bool:
        """Whether it holds its devices: pods that ended or were refused hold nothing."""
        return self.phase in (PodPhase.PENDING, PodPhase.RUNNING) and bool(self.containers)

    def container(self, name: str) -> ContainerStatus:
        """Raises KeyError."""
        for status in self.containers:
            if status.name == name:
                return status
        raise KeyError(f"pod {self.pod.key} has no container {name!r}")

    def with_container(self, changed: ContainerStatus) -> PodStatus:
        """The same with one container's status replaced."""
        containers = (
            changed if container.name == changed.name else container for container in self.containers
        )
        return replace(self, containers=tuple(containers))

    @property
    def waiting(self) -> tuple[ContainerStatus, ...]:
        """The containers that have not started, in the pod's order."""
        return tuple(container for container in self.containers if container.state is ContainerState.WAITING)


class Holding(Frozen):
    """What one container holds of one resource. The answer is kept for restarts."""

    ids: tuple[ShareId, ...]
    answer: ContainerAllocation


Holdings = dict[str, Holding]
"""Resource name to holding, of one container, in the order of its requests."""


def waiting_container(name: str, holdings: Holdings) -> ContainerStatus:
    """The status of a container that has its devices and waits for its start.

    Where two resources set the same thing, the first one counts: a kubelet keeps one and logs that.
    """
    answers = [holding.answer for holding in holdings.values()]
    return ContainerStatus(
        name,
        ids={resource: holding.ids for resource, holding in holdings.items()},
        env={key: value for answer in reversed(answers) for key, value in answer.envs.items()},
        mounts=_distinct(mount for answer in answers for mount in answer.mounts),
        devices=_distinct(node for answer in answers for node in answer.devices),
        annotations={key: value for answer in reversed(answers) for key, value in answer.annotations.items()},
        cdi_devices=tuple(dict.fromkeys(name for answer in answers for name in answer.cdi_devices)),
    )


_AtPath = TypeVar("_AtPath", Mount, DeviceNode)


def _distinct(things: Iterable[_AtPath]) -> tuple[_AtPath, ...]:
    """One thing for each path in the container, the first."""
    at: dict[str, _AtPath] = {}
    for thing in things:
        at.setdefault(thing.container_path, thing)
    return tuple(at.values())


class SimulatedScheduler:
    """It counts as kube-scheduler does: what is allocatable, less the requests of all bound pods.

    allocatable: healthy devices of each resource. is_ready: whether the node takes pods.
    """

    def __init__(self, allocatable: Callable[[], Mapping[str, int]], is_ready: Callable[[], bool]) -> None:
        self._allocatable = allocatable
        self._is_ready = is_ready
        self._bound: dict[str, Pod] = {}
        self._waiting: dict[str, tuple[Pod, asyncio.Future[bool]]] = {}

    def knows(self, pod: Pod) -> bool:
        """Whether a pod of that name is bound, or waits."""
        return pod.key in self._bound or pod.key in self._waiting

    def waiting(self) -> tuple[Pod, ...]:
        """Pods that wait until there is room for them, oldest first."""
        return tuple(pod for pod, _ in self._waiting.values())

    def bind(self, pod: Pod) -> None:
        """It is on the node, whether it fits or not."""
        self._bound[pod.key] = pod

    def unbind(self, pod: Pod) -> None:
        """It has ended, or was refused: what it asked for is free."""
        del self._bound[pod.key]

    async def place(self, pod: Pod, *, waits: bool) -> list[str]:
        """Bind it if it fits; else the resources that lack devices. waits: only if it was given up while it
        waited for them.
        """
        lacking = self._insufficient(pod)
        if not lacking:
            self.bind(pod)
        elif waits and await self._fits(pod):
            return []
        return lacking

    def give_up(self, pod: Pod) -> None:
        """A pod that waits was deleted; nothing happens if it does not wait."""
        _, bound = self._waiting.get(pod.key, (pod, None))
        if bound is not None and not bound.done():
            bound.set_result(False)

    def schedule(self) -> None:
        """Bind the pods that wait and fit, oldest first."""
        for key, (pod, bound) in list(self._waiting.items()):
            if self._is_ready() and not bound.done() and not self._insufficient(pod):
                del self._waiting[key]
                self.bind(pod)
                bound.set_result(True)

    async def _fits(self, pod: Pod) -> bool:
        """Wait until it is bound. False: it was deleted before."""
        bound: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[pod.key] = pod, bound
        try:
            return await bound
        finally:
            self._waiting.pop(pod.key, None)

    def _insufficient(self, pod: Pod) -> list[str]:
        """Resources that lack devices."""
        allocatable = self._allocatable()
        used: Counter[str] = Counter()
        for other in self._bound.values():
            used.update(other.totals)
        wanted = pod.totals.items()
        return [name for name, count in wanted if count > allocatable.get(name, 0) - used[name]]

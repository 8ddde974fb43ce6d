"""The scheduler of a cluster of one node: which pods are bound to it, and which wait until they fit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

from partage.sim.kubelet.pod import Pod


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
            used.update(other.requests())
        wanted = pod.requests().items()
        return [name for name, count in wanted if count > allocatable.get(name, 0) - used[name]]

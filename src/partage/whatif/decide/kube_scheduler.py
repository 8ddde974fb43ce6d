"""Nodes as kube-scheduler sees them: what fits, how good each is for a pod, and which of the best it draws.

Source: kubernetes 1.36, pkg/scheduler/framework/plugins/noderesources: NodeResourcesFit, LeastAllocated and
BalancedAllocation, each with weight 1. The other plugins of the default profile say the same of all nodes
here: there are no taints, affinities, spread constraints or images. Devices do not count in the score. How
many nodes are looked at, and from which on: pkg/scheduler/schedule_one.go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Generic

from partage.plan.placement.room import NO, KnownScores, PodKind, ScoredNode
from partage.whatif.decide.demand import Demand, Unmet
from partage.whatif.decide.node_devices import Holding, NodeAllocator
from partage.whatif.decide.pods import NodeKind, PodWants

MOST_PODS = 110
"""Pods on a node: the kubelet's default."""

_MAX = 100
_CPU_IF_NONE, _MEMORY_IF_NONE = 100, 200 * 2**20
"""What LeastAllocated takes a pod to ask for that asks for nothing."""

_UNKNOWN_CPU, _UNKNOWN_MEMORY = 128_000, 2**40
"""What a node is scored as whose CPU and memory are not known; they do not limit it."""


class PodClass:
    """Pods that ask for the same. needs: by kind of node what they ask for there, or why they never fit."""

    def __init__(self, number: int, wants: PodWants, needs: Sequence[Demand | Unmet]) -> None:
        self.number = number
        self.wants = wants
        self.needs = tuple(needs)
        self.cpu = wants.cpu_milli
        self.memory = wants.memory_bytes
        self.counted_cpu = wants.cpu_milli or _CPU_IF_NONE
        self.counted_memory = wants.memory_bytes or _MEMORY_IF_NONE


class Node:
    """One node: what its pods have asked for.

    counted_cpu, counted_memory: with the amounts for pods that ask for nothing. refused: classes that the
    agent has refused since something ended here; it would again.
    """

    def __init__(self, name: str, kind: int, what: NodeKind, devices: NodeAllocator) -> None:
        self.name = name
        self.kind = kind
        self.devices = devices
        self.pods = 0
        self.cpu = self.memory = self.counted_cpu = self.counted_memory = 0
        self.refused: set[int] = set()
        self._most_cpu, self._most_memory = what.cpu_milli, what.memory_bytes
        self._scored_cpu = what.cpu_milli or _UNKNOWN_CPU
        self._scored_memory = what.memory_bytes or _UNKNOWN_MEMORY

    def fits(self, pod: PodClass) -> bool:
        """NodeResourcesFit, and the node selector."""
        if not self.has_devices(pod) or self.pods >= MOST_PODS or pod.number in self.refused:
            return False
        if self._most_cpu is not None and pod.cpu and self.cpu + pod.cpu > self._most_cpu:
            return False
        most = self._most_memory
        return most is None or not pod.memory or self.memory + pod.memory <= most

    def has_devices(self, pod: PodClass) -> bool:
        """Whether it has the shares, and is of a kind that the pod takes; the rest of ``fits`` left aside."""
        need, free = pod.needs[self.kind], self.devices.free
        if isinstance(need, Unmet):
            return False
        for name, count in need:  # a plain loop: this is called millions of times
            if free[name] < count:
                return False
        return not pod.wants.claims or self.devices.claims.fits(pod.wants.claims)

    def score(self, pod: PodClass) -> int:
        """Higher is better."""
        cpu, memory = self._scored_cpu, self._scored_memory
        least = least_allocated(
            self.counted_cpu + pod.counted_cpu, cpu, self.counted_memory + pod.counted_memory, memory
        )
        if not pod.cpu and not pod.memory:  # BalancedAllocation leaves such pods alone
            return least
        then = balance(self.cpu + pod.cpu, cpu, self.memory + pod.memory, memory)
        return least + balanced_allocation(balance(self.cpu, cpu, self.memory, memory), then)

    def take(self, pod: PodClass, now_s: float) -> Holding:
        """The pod has come. Raises AllocationRefused; then nothing has changed but what is listed."""
        need = pod.needs[self.kind]
        assert not isinstance(need, Unmet), "the scheduler sends a pod only where it fits"
        holding: Holding = ()
        if pod.wants.claims:
            holding = self.devices.allocate_claims(pod.wants.claims)
        elif need:
            holding = self.devices.allocate(need, now_s)
        self._count(pod, 1)
        return holding

    def leave(self, pod: PodClass, holding: Holding) -> None:
        """The pod has ended."""
        self.devices.release(holding)
        self.refused.clear()
        self._count(pod, -1)

    def _count(self, pod: PodClass, sign: int) -> None:
        self.pods += sign
        self.cpu += sign * pod.cpu
        self.memory += sign * pod.memory
        self.counted_cpu += sign * pod.counted_cpu
        self.counted_memory += sign * pod.counted_memory


def least_allocated(cpu: int, most_cpu: int, memory: int, most_memory: int) -> int:
    """0 to 100, the more the emptier the node is with the pod."""
    return (_least(cpu, most_cpu) + _least(memory, most_memory)) // 2


def _least(requested: int, capacity: int) -> int:
    return 0 if requested > capacity else (capacity - requested) * _MAX // capacity


def balanced_allocation(before: int, then: int) -> int:
    """50 to 100, the more the better the pod evens out the use of CPU and memory (see ``balance``)."""
    return _MAX // 2 + (_MAX // 2 + then - before) // 2


def balance(cpu: int, most_cpu: int, memory: int, most_memory: int) -> int:
    """50 to 100: how equally CPU and memory of a node are used."""
    apart = abs(min(1.0, cpu / most_cpu) - min(1.0, memory / most_memory)) / 2
    return int((1 - apart) * _MAX)


_LEAST_FEASIBLE = 100

Draw = Callable[[int, Sequence[int]], int]
"""Which node is taken. Its arguments: number of the pod in the trace, and the equally good nodes, at least
one."""


def drawn(seed: int) -> Draw:
    """Any of them is as likely; the same seed draws the same."""
    random = Random(seed)  # noqa: S311 - a draw that can be repeated, no secret
    return lambda _pod, nodes: nodes[0] if len(nodes) == 1 else random.choice(nodes)


class KubeScheduler(Generic[PodKind]):
    """Ranks nodes. wanted: after how many nodes on which a pod fits it looks no further; None: as
    kube-scheduler does.
    """

    def __init__(self, nodes: Sequence[ScoredNode[PodKind]], wanted: int | None = None) -> None:
        self._known = KnownScores(nodes)
        self._start = 0
        self._wanted = feasible_wanted(len(nodes)) if wanted is None else wanted
        self.changed = self._known.changed

    def best(self, pod: PodKind) -> list[int]:
        """The best nodes for a pod among those that are looked at; none: it fits nowhere now."""
        scores = self._known.of(pod)
        order = scores[self._start :] + scores[: self._start]
        count = 0
        if len(scores) > self._wanted:
            for place, score in enumerate(order):
                if score != NO:
                    count += 1
                    if count == self._wanted:
                        order = order[: place + 1]
                        break
        best = max(order, default=NO)
        if best == NO:
            return []
        begun, self._start = self._start, (self._start + len(order)) % len(scores)
        return [(begun + place) % len(scores) for place, score in enumerate(order) if score == best]


def feasible_wanted(nodes: int) -> int:
    """After how many nodes on which a pod fits kube-scheduler looks no further (percentageOfNodesToScore)."""
    if nodes < _LEAST_FEASIBLE:
        return nodes
    return max(_LEAST_FEASIBLE, nodes * max(5, 50 - nodes // 125) // 100)

"""What is left of a node, and where on it a pod can go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from partage.plan.placement.mix import WHOLE_MILLI, PodType

GpuIndexes = tuple[int, ...]
"""GPUs of a node, by their place in ``Room.left``; () for a pod without GPUs."""


class Room(Struct):
    """What is left of a node. left: milli of each GPU. most_cpu_milli, most_memory_mib: without pods."""

    model: str
    cpu_milli: int
    memory_mib: int
    left: list[int]
    most_cpu_milli: int
    most_memory_mib: int

    @property
    def unused(self) -> bool:
        """No pod is on it."""
        return self.cpu_milli == self.most_cpu_milli and self.left == [WHOLE_MILLI] * len(self.left)

    def fits(self, pod: PodType) -> bool:
        """Whether the pod can go here."""
        if pod.cpu_milli > self.cpu_milli or pod.memory_mib > self.memory_mib:
            return False
        if not pod.gpus:
            return True
        return pod.may_have(self.model) and sum(left >= pod.milli for left in self.left) >= pod.gpus

    def take(self, pod: PodType, gpus: GpuIndexes) -> None:
        """The pod is here."""
        self.cpu_milli -= pod.cpu_milli
        self.memory_mib -= pod.memory_mib
        for index in gpus:
            self.left[index] -= pod.milli


class NodeScores(Protocol):
    """One way to choose."""

    def best(self, pod: PodType, room: Room) -> tuple[float, GpuIndexes]:
        """The score of a node where the pod fits, the higher the better, and the GPUs there."""


def first_fit(pod: PodType, left: Sequence[int]) -> GpuIndexes:
    """What the allocator of claims takes: the first GPUs with enough left."""
    found: list[int] = []
    for index, of_gpu in enumerate(left):
        if len(found) == pod.gpus:
            break
        if of_gpu >= pod.milli:
            found.append(index)
    return tuple(found)


def choices(pod: PodType, left: Sequence[int]) -> Iterator[GpuIndexes]:
    """GPUs that make a difference: the first of those with as much left. A pod of several gets the first."""
    if pod.gpus != 1:
        yield first_fit(pod, left)
        return
    seen: set[int] = set()
    for index, of_gpu in enumerate(left):
        if of_gpu >= pod.milli and of_gpu not in seen:
            seen.add(of_gpu)
            yield (index,)


def without(pod: PodType, left: Sequence[int], gpus: GpuIndexes) -> tuple[int, ...]:
    """What is left of each GPU once the pod has these."""
    after = list(left)
    for index in gpus:
        after[index] -= pod.milli
    return tuple(after)

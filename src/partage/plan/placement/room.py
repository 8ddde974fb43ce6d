"""What is left of a node, where on it a pod can go, and the scores of nodes, remembered."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from partage.plan.placement.mix import WHOLE_MILLI, PodType

GpuIndexes = tuple[int, ...]
"""GPUs of a node, by their place in ``Room.left``; () for a pod without GPUs."""
NO = float("-inf")
"""The score of a node where a pod does not fit, or that is not known."""


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


class ScoredRoom:
    """A node whose room becomes less, and how good it is for pods. room: of now; it is not changed."""

    def __init__(self, room: Room, scores: NodeScores) -> None:
        self._room, self._scores = replace(room, left=[*room.left]), scores

    def fits(self, pod: PodType) -> bool:
        """Whether the pod can go here."""
        return self._room.fits(pod)

    def score(self, pod: PodType) -> float:
        """Of a pod that fits: higher is better."""
        return self._scores.best(pod, self._room)[0]

    def take(self, pod: PodType) -> None:
        """The pod is here, on the best GPUs."""
        self._room.take(pod, self._scores.best(pod, self._room)[1])


Pod_contra = TypeVar("Pod_contra", bound=Hashable, contravariant=True)
PodKind = TypeVar("PodKind", bound=Hashable)


class ScoredNode(Protocol[Pod_contra]):
    """As ``ScoredRoom``, of pods of any kind."""

    def fits(self, pod: Pod_contra, /) -> bool:
        """Whether such a pod can go there."""

    def score(self, pod: Pod_contra, /) -> float:
        """Higher is better."""


class _KnownRow:
    """scores: of each node. seen: how many changes they know."""

    def __init__(self, nodes: int) -> None:
        self.scores = [NO] * nodes
        self.seen: int | None = None


class KnownScores(Generic[PodKind]):
    """The score of every node for every pod; only what changed is counted again."""

    def __init__(self, nodes: Sequence[ScoredNode[PodKind]]) -> None:
        self._nodes = nodes
        self._changes: list[int] = []
        self._rows: dict[PodKind, _KnownRow] = {}

    def changed(self, place: int) -> None:
        """Something on this node is not as it was."""
        self._changes.append(place)

    def of(self, pod: PodKind) -> list[float]:
        """By the place of the node, NO where the pod does not fit. It belongs to this object."""
        row = self._rows.get(pod)
        if row is None:
            row = self._rows[pod] = _KnownRow(len(self._nodes))
        stale: set[int] | range = range(len(self._nodes))
        if row.seen is not None and len(self._changes) - row.seen < len(self._nodes):
            stale = set(self._changes[row.seen :])
        for place in stale:
            node = self._nodes[place]
            row.scores[place] = node.score(pod) if node.fits(pod) else NO
        row.seen = len(self._changes)
        return row.scores

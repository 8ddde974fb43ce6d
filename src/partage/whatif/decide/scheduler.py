"""Which nodes are best for a pod: the default rules of kube-scheduler, as far as a trace tells what they ask.

Source: kubernetes 1.36, pkg/scheduler/schedule_one.go: how many nodes are looked at, and from which on. It
draws one of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Generic, Protocol, TypeVar

_LEAST_FEASIBLE = 100
_NO = float("-inf")

Draw = Callable[[int, Sequence[int]], int]
"""Which node is taken. Its arguments: number of the pod in the trace, and the equally good nodes, at least
one."""


def drawn(seed: int) -> Draw:
    """Any of them is as likely; the same seed draws the same."""
    random = Random(seed)  # noqa: S311 - a draw that can be repeated, no secret
    return lambda _pod, nodes: nodes[0] if len(nodes) == 1 else random.choice(nodes)


class Numbered(Protocol):
    """Pods that ask for the same."""

    @property
    def number(self) -> int:
        """Which of all."""


Pods_contra = TypeVar("Pods_contra", bound=Numbered, contravariant=True)
Pods = TypeVar("Pods", bound=Numbered)


class Scored(Protocol[Pods_contra]):
    """A node."""

    def fits(self, pod: Pods_contra, /) -> bool:
        """Whether such a pod can go there."""

    def score(self, pod: Pods_contra, /) -> float:
        """Higher is better."""


class KubeScheduler(Generic[Pods]):
    """Ranks nodes. It remembers the score of every class on every node, and counts again what changed.

    wanted: after how many nodes on which a pod fits it looks no further; None: as kube-scheduler does.
    """

    def __init__(self, nodes: Sequence[Scored[Pods]], wanted: int | None = None) -> None:
        self.nodes = nodes
        self._start = 0
        self._wanted = feasible_wanted(len(nodes)) if wanted is None else wanted
        self._changes: list[int] = []
        self._scores: dict[int, list[float]] = {}
        self._seen: dict[int, int] = {}

    def changed(self, node: int) -> None:
        """Something on this node is not as it was."""
        self._changes.append(node)

    def best(self, pod: Pods) -> list[int]:
        """The best nodes for a pod among those that are looked at; none: it fits nowhere now."""
        scores = self._scores_of(pod)
        looked, count = len(scores), 0
        if len(scores) > self._wanted:
            order = scores[self._start :] + scores[: self._start]
            for place, score in enumerate(order):
                if score != _NO:
                    count += 1
                    if count == self._wanted:
                        looked = place + 1
                        break
            order = order[:looked]
        else:
            order = scores[self._start :] + scores[: self._start]
        best = max(order, default=_NO)
        if best == _NO:
            return []
        begun, self._start = self._start, (self._start + looked) % len(scores)
        return [(begun + place) % len(scores) for place, score in enumerate(order) if score == best]

    def _scores_of(self, pod: Pods) -> list[float]:
        """The score on every node, _NO where the pod does not fit."""
        scores = self._scores.get(pod.number)
        seen = self._seen.get(pod.number, 0)
        if scores is None:
            scores = self._scores[pod.number] = [_NO] * len(self.nodes)
            stale: set[int] | range = range(len(self.nodes))
        elif len(self._changes) - seen >= len(self.nodes):
            stale = range(len(self.nodes))
        else:
            stale = set(self._changes[seen:])
        for number in stale:
            node = self.nodes[number]
            scores[number] = node.score(pod) if node.fits(pod) else _NO
        self._seen[pod.number] = len(self._changes)
        return scores


def feasible_wanted(nodes: int) -> int:
    """After how many nodes on which a pod fits kube-scheduler looks no further (percentageOfNodesToScore)."""
    if nodes < _LEAST_FEASIBLE:
        return nodes
    return max(_LEAST_FEASIBLE, nodes * max(5, 50 - nodes // 125) // 100)

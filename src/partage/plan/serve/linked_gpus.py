"""The best-linked set of whole GPUs, without trying all sets.

A pair of GPUs scores as in NVIDIA's best-effort policy: the value of its PCIe path, and 100 for each NVLink
(here including those through an NVSwitch). The best set has the greatest sum over its pairs. Of equal sets,
the one is chosen that leaves the best-linked rest for the next request; then the one with the lowest
indexes.

Both criteria form one sum. Let deg(g) be the score of g with all free GPUs. The pairs of the rest score
total + chosen - sum(deg of the chosen), so of equal sets the one with the smallest sum of degrees leaves
the most. A large factor puts the first criterion before the second.

Search: greedy growth from several starts, improved by swaps, gives a good set. Branch and bound in the
order of the indexes then looks for a better set, or an equal one with lower indexes, and stops after a
fixed number of nodes. Up to ten free GPUs this is a complete proof. Larger sets are usually proven at the
first nodes, because real topologies have few different scores; otherwise the result is the best set found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partage.model.gpu import Link
from partage.model.ids import GpuUuid

_NVLINK_SCORE = 100
_STARTS_MOST = 16
_SWAPPED_MOST = 3
_NODES_TIMES_GPUS = 4800
"""Limit of the search. The time for one node is proportional to the free GPUs: 480 nodes for 10 GPUs, whose
largest tree has 252; 300 for 16.
"""


def pair_score(link: Link) -> int:
    """How well two GPUs are linked (as in NVIDIA's go-gpuallocator: the path and every NVLink count)."""
    return int(link.path) + _NVLINK_SCORE * link.nvlinks


class LinkedGpus:
    """The GPUs of a resource, by position, and the scores of their pairs. None: not a whole GPU, no links."""

    def __init__(self, gpus: Sequence[GpuUuid | None], links: Iterable[Link]) -> None:
        positions = {gpu: position for position, gpu in enumerate(gpus)}
        self._scores = [[0] * len(gpus) for _ in gpus]
        for link in links:
            a, b = positions.get(link.a), positions.get(link.b)
            if a is not None and b is not None:
                self._scores[a][b] = self._scores[b][a] = pair_score(link)

    def best(self, free: Iterable[int], must: Iterable[int], size: int) -> list[int]:
        """``size`` positions out of free and must, including those of must; ascending.

        free and must together have at least ``size`` positions.
        """
        fixed = set(must)
        gpus = sorted(fixed.union(free))
        if size >= len(gpus) or size <= len(fixed):
            return gpus if size >= len(gpus) else sorted(fixed)
        chosen = _Search([[self._scores[a][b] for b in gpus] for a in gpus], size).best(
            [place for place, gpu in enumerate(gpus) if gpu in fixed]
        )
        return [gpus[place] for place in sorted(chosen)]


class _Search:
    """One choice of ``size`` out of the free GPUs, numbered 0 to n - 1.

    worth: gain of a pair; cost: of a single GPU. Both are doubled, so that half a pair is a whole number.
    """

    def __init__(self, scores: list[list[int]], size: int) -> None:
        degrees = [sum(row) for row in scores]
        factor = sum(degrees) + 1
        self.size = size
        self.places = range(len(scores))
        self.worth = [[2 * factor * score for score in row] for row in scores]
        self.cost = [2 * degree for degree in degrees]
        self.half_best = [_halves(row, place) for place, row in enumerate(self.worth)]

    def best(self, must: list[int]) -> tuple[int, ...]:
        gains = [-cost for cost in self.cost]
        value = 0
        for place in must:
            value += gains[place]
            gains = self.after(gains, place)
        good_value, good = self._good(must, value, gains)
        proof = _Proof(self, good_value)
        proof.descend(tuple(must), value, gains, [place for place in self.places if place not in must])
        return proof.best or good

    def after(self, gains: list[int], place: int) -> list[int]:
        """The gain of each GPU after ``place`` is chosen too."""
        return [gain + pair for gain, pair in zip(gains, self.worth[place], strict=True)]

    def _good(self, must: list[int], value: int, gains: list[int]) -> tuple[int, tuple[int, ...]]:
        """A good set and its value: the best of several, grown and swapped."""
        others = [place for place in self.places if place not in must]
        step = -(-len(others) // _STARTS_MOST)
        grown = {self._grown([*must, start], value + gains[start], self.after(gains, start))
                 for start in others[::step]}  # fmt: skip
        ranked = sorted(grown, key=lambda found: (-found[0], found[1]))
        swapped = (self._swapped(*found, fixed=must) for found in ranked[:_SWAPPED_MOST])
        return min(swapped, key=lambda found: (-found[0], found[1]))

    def _grown(self, chosen: list[int], value: int, gains: list[int]) -> tuple[int, tuple[int, ...]]:
        """Repeatedly add the GPU with the largest gain."""
        left = [place for place in self.places if place not in chosen]
        while len(chosen) < self.size:
            place = max(left, key=gains.__getitem__)
            left.remove(place)
            chosen.append(place)
            value += gains[place]
            gains = self.after(gains, place)
        return value, tuple(sorted(chosen))

    def _swapped(self, value: int, chosen: tuple[int, ...], fixed: list[int]) -> tuple[int, tuple[int, ...]]:
        """Exchange GPUs while that improves the value; this ends, because each improvement is a whole
        number.
        """
        inside = set(chosen)
        while True:
            gains = [sum(self.worth[a][b] for b in inside) - self.cost[a] for a in self.places]
            exchanges = (
                (gains[new] - gains[old] - self.worth[new][old], -old, -new)
                for old in inside.difference(fixed)
                for new in self.places
                if new not in inside
            )
            gain, old, new = max(exchanges)
            if gain <= 0:
                return value, tuple(sorted(inside))
            inside.symmetric_difference_update((-old, -new))
            value += gain


class _Proof:
    """Branch and bound in ascending order; sets that cannot be better, or equal and lower, are skipped."""

    def __init__(self, search: _Search, value: int) -> None:
        self._search = search
        self._value = value
        self._nodes_left = _NODES_TIMES_GPUS // len(search.places)
        self.best: tuple[int, ...] = ()

    def descend(self, chosen: tuple[int, ...], value: int, gains: list[int], left: list[int]) -> None:
        """All sets that continue ``chosen`` with places of ``left``."""
        missing = self._search.size - len(chosen)
        if missing == 0:
            if self._improves(value):
                self._value, self.best = value, chosen
            return
        self._nodes_left -= 1
        for position in range(len(left) - missing + 1):
            if self._nodes_left < 0 or not self._promises(value, gains, left[position:], missing):
                return
            place = left[position]
            rest = left[position + 1 :]
            self.descend((*chosen, place), value + gains[place], self._search.after(gains, place), rest)

    def _promises(self, value: int, gains: list[int], left: list[int], missing: int) -> bool:
        """Whether ``missing`` GPUs of left could improve the result, by an estimate that is never too low."""
        halves = self._search.half_best
        promised = sorted((gains[place] + halves[place][missing - 1] for place in left), reverse=True)
        return self._improves(value + sum(promised[:missing]))

    def _improves(self, value: int) -> bool:
        """The first set found has the lowest indexes of its value, so it replaces an equal one."""
        return value > self._value or (value == self._value and not self.best)


def _halves(row: list[int], place: int) -> list[int]:
    """Half of the sum of the n best pairs of one GPU, for each n from 0."""
    sums = [0]
    for pair in sorted(row[:place] + row[place + 1 :], reverse=True):
        sums.append(sums[-1] + pair // 2)
    return sums

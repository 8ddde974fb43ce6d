"""What will be wasted of a hole if pods go where they spoil least: many holes want the few small pods.

The steady table (``waste``) lets every pod come to every hole, again and again. Where small pods are rare,
that promises too much. Here all GPUs of a large cluster fill together: each kind of pod takes the holes that
the table of the round before likes best, until there are no more such pods. What then becomes of each hole is
the next table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from partage.values import Frozen

if TYPE_CHECKING:
    import numpy as np

_ROUNDS, _NEW = 30, 0.2
"""_NEW: how much of each new table is taken."""
_STEPS, _LOAD, _FULL = 130, 1.3, 0.95
"""Pods come in steps, until they asked for _LOAD of the GPUs; what is unused counts from _FULL on."""


class _Arrival(Frozen):
    """Pods of one size in one step. holes: where they fit, best first. gains: how good each is."""

    size: int
    count: float
    holes: np.ndarray
    gains: np.ndarray


def contested_holes(steady: Sequence[float], sizes: Mapping[int, float], step: int) -> tuple[float, ...]:
    """Milli finally wasted of a GPU of which ``n * step`` milli are left. steady: to begin with. sizes: how
    often pods of so many steps come; they add up to 1.
    """
    import numpy as np

    waste = np.array(steady)
    if not sizes:
        return tuple(steady)
    whole = len(steady) - 1
    left = float(step) * np.arange(whole + 1)
    each = _LOAD * whole / _STEPS / sum(size * part for size, part in sizes.items())
    for _ in range(_ROUNDS):
        arrivals = [_arrival(waste, size, part * each) for size, part in sorted(sizes.items())]
        waste = (1 - _NEW) * waste + _NEW * _wasted(arrivals, _moves(arrivals, whole), left)
    return tuple(map(float, waste))


def _arrival(waste: np.ndarray, size: int, count: float) -> _Arrival:
    import numpy as np

    holes = np.arange(size, len(waste))
    gains = waste[holes] - waste[holes - size]
    order = np.argsort(-gains, kind="stable")
    return _Arrival(size, count, holes[order], gains[order])


def _moves(arrivals: Sequence[_Arrival], whole: int) -> list[list[np.ndarray]]:
    """Of each step and arrival: which part of each hole, best first, gets such a pod. A size of which there
    are none is as one hole that came among the others.
    """
    import numpy as np

    share = np.zeros(whole + 1)
    share[whole] = 1.0
    found = []
    for _ in range(_STEPS):
        parts = []
        for pods in arrivals:
            there = share[pods.holes]
            together = np.cumsum(there)
            taken = np.diff(np.minimum(together, pods.count), prepend=0.0)
            last = int(np.searchsorted(together, pods.count - 1e-15))
            least = pods.gains[last] if last < len(together) else -np.inf
            parts.append(np.where(there > 0, taken / np.where(there > 0, there, 1.0), pods.gains >= least))
            share[pods.holes] -= taken
            share[pods.holes - pods.size] += taken
        found.append(parts)
    return found


def _wasted(
    arrivals: Sequence[_Arrival], moves: Sequence[Sequence[np.ndarray]], left: np.ndarray
) -> np.ndarray:
    """Mean milli that stay unused of a hole that is there at a random step. left: of each hole."""
    import numpy as np

    later, together = np.zeros_like(left), np.zeros_like(left)
    counted = 0
    for number in range(len(moves) - 1, -1, -1):
        if number >= int(_STEPS * _FULL / _LOAD):
            later = later + left
            counted += 1
        for pods, part in zip(reversed(arrivals), reversed(moves[number]), strict=True):
            after = later.copy()
            after[pods.holes] += part * (later[pods.holes - pods.size] - later[pods.holes])
            later = after
        together += later / counted
    mean: np.ndarray = together / len(moves)
    return mean

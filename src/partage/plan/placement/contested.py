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
    each = _LOAD * whole / _STEPS / sum(size * part for size, part in sizes.items())
    for _ in range(_ROUNDS):
        arrivals = [_arrival(waste, size, part * each) for size, part in sorted(sizes.items())]
        waste = (1 - _NEW) * waste + _NEW * _wasted(_moves(arrivals, whole), step)
    return tuple(map(float, waste))


def _arrival(waste: np.ndarray, size: int, count: float) -> _Arrival:
    import numpy as np

    holes = np.arange(size, len(waste))
    gains = waste[holes] - waste[holes - size]
    order = np.argsort(-gains, kind="stable")
    return _Arrival(size, count, holes[order], gains[order])


def _moves(arrivals: Sequence[_Arrival], whole: int) -> list[np.ndarray]:
    """Of each step: how much of the holes of one size (rows) become holes of another (columns). A size of
    which there are none is as one hole that came among the others.
    """
    import numpy as np

    share = np.zeros(whole + 1)
    share[whole] = 1.0
    found = []
    for _ in range(_STEPS):
        moved = np.eye(whole + 1)
        for pods in arrivals:
            there = share[pods.holes]
            together = np.cumsum(there)
            taken = np.diff(np.minimum(together, pods.count), prepend=0.0)
            last = int(np.searchsorted(together, pods.count - 1e-15))
            least = pods.gains[last] if last < len(together) else -np.inf
            part = np.where(there > 0, taken / np.where(there > 0, there, 1.0), pods.gains >= least)
            away = moved[:, pods.holes] * part
            moved[:, pods.holes] -= away
            moved[:, pods.holes - pods.size] += away
            share[pods.holes] -= taken
            share[pods.holes - pods.size] += taken
        found.append(moved)
    return found


def _wasted(moves: Sequence[np.ndarray], step: int) -> np.ndarray:
    """Mean milli that stay unused of a hole that is there at a random step."""
    import numpy as np

    left = float(step) * np.arange(len(moves[0]))
    later, together = np.zeros_like(left), np.zeros_like(left)
    counted = 0
    for number in range(len(moves) - 1, -1, -1):
        if number >= int(_STEPS * _FULL / _LOAD):
            later = later + left
            counted += 1
        later = moves[number] @ later
        together += later / counted
    mean: np.ndarray = together / len(moves)
    return mean

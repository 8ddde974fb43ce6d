"""Scores of nodes as kube-scheduler takes them from an extender: whole numbers from 0 to 10."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

BEST = 10
NO = float("-inf")
"""The score of a node that is not known, or where the pod does not fit as far as is known."""


def ranked(scores: Sequence[float]) -> list[int]:
    """10 for the best score, the others over 0 to 9 in their order, equal ones alike. 0 for NO, and where all
    are equal.

    kube-scheduler adds scores of its own, so the best has a number for itself.
    """
    distinct = sorted(set(scores), reverse=True)
    if len(distinct) < 2:
        return [0] * len(scores)  # equal
    none = distinct[-1] == NO
    rank_of = dict(zip(distinct, _ranks(len(distinct) - none) + (0,) * none, strict=True))
    return list(map(rank_of.__getitem__, scores))


@lru_cache(maxsize=64)
def _ranks(count: int) -> tuple[int, ...]:
    """Of different scores, the best first."""
    others = count - 1
    return BEST, *(9 - place * 10 // others for place in range(others))

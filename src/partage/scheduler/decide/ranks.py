"""Scores of nodes as kube-scheduler takes them from an extender: whole numbers from 0 to 10."""

from __future__ import annotations

from collections.abc import Sequence

BEST = 10


def ranked(scores: Sequence[float]) -> list[int]:
    """10 for the best score, the others over 0 to 9 in their order, equal ones alike.

    kube-scheduler adds scores of its own, so the best has a number for itself.
    """
    distinct = sorted(set(scores), reverse=True)
    if len(distinct) < 2:
        return [0] * len(scores)  # equal
    others = len(distinct) - 1
    ranks = {score: 9 - place * 10 // others for place, score in enumerate(distinct[1:])}
    ranks[distinct[0]] = BEST
    return [ranks[score] for score in scores]

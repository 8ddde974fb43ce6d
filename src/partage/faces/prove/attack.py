"""Attacks as values: what each of them tests, on which shares, and how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from partage.faces.prove.model import Outcome
from partage.faces.prove.share import Share
from partage.faces.prove.stage import Need, Stage
from partage.model.share import Guarantee


@dataclass(frozen=True, slots=True)
class Attack:
    """One way to break one promise.

    name: as reports call it. strategy: whose shares make the promise. guarantee: what such a share states
    where a node offers none. promised: a sentence about every such share. tried: what is done, a sentence.
    on: whether a share makes the promise. act: raises NotLetIn, Lost where it does not come off.
    """

    name: str
    strategy: str
    guarantee: Guarantee
    promised: str
    tried: str
    on: Callable[[Share], bool]
    act: Callable[[Stage], Awaitable[Outcome]]
    needs: frozenset[Need] = frozenset()

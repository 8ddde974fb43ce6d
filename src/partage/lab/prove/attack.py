"""Attacks as values: what each of them tests, on which shares, and how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from partage.lab.prove.model import AttackOutcome
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, ExperimentStage
from partage.model.share import Guarantee
from partage.values import Frozen

Act = Callable[[ExperimentStage], Awaitable[AttackOutcome]]


class Attack(Frozen):
    """One way to break one promise.

    name: as reports call it. strategy: which shares make the promise. guarantee: what such a share states
    where a node offers none. promised: a sentence about every such share. tried: what is done, a sentence.
    on: whether a share makes the promise. act: raises TenantFailed, CannotTry where it could not be tried.
    """

    name: str
    strategy: str
    guarantee: Guarantee
    promised: str
    tried: str
    on: Callable[[PromisedShare], bool]
    needs: frozenset[AttackNeed]
    act: Act


def attack(
    name: str,
    strategy: str,
    guarantee: Guarantee,
    *needs: AttackNeed,
    promised: str,
    tried: str,
    on: Callable[[PromisedShare], bool],
) -> Callable[[Act], Attack]:
    """Makes an attack of the function that carries it out."""
    return partial(Attack, name, strategy, guarantee, promised, tried, on, frozenset(needs))

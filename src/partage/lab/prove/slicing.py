"""Time-slicing: nothing limits a tenant but the guard, which it can drop."""

from __future__ import annotations

from functools import partial

from partage.lab.place import TenantMode
from partage.lab.prove.attack import Attack
from partage.lab.prove.model import AttackOutcome, kept
from partage.lab.prove.outcomes import (
    NO_ROOM,
    amount,
    beyond,
    got_around,
    judge_allocation,
    shared_by,
    was_held,
)
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import UNCHANGED, Allocated, AttackNeed, ExperimentStage, VariableChanges, fill
from partage.model.policy import Strategy
from partage.model.share import Guarantee
from partage.units import format_bytes

_is_sliced = partial(shared_by, Strategy.TIME_SLICING)


def _unlimited(share: PromisedShare) -> bool:
    return _is_sliced(share) and not share.guarded_by_framework


async def _filled(
    stage: ExperimentStage, mode: TenantMode | None, changes: VariableChanges = UNCHANGED
) -> Allocated | None:
    """What a tenant gets that wants more than its share; None where the limit cannot be told from the end."""
    share = stage.share
    most = beyond(share.bytes, share.device_bytes)
    return None if most is None else await fill(await stage.tenant(changes, mode=mode), share.bytes, most)


async def _unheld(stage: ExperimentStage) -> AttackOutcome:
    got = await _filled(stage, None)
    return NO_ROOM if got is None else _without_limit(stage, got)


async def _capped(stage: ExperimentStage) -> AttackOutcome:
    got = await _filled(stage, TenantMode.WITH_GUARD)
    return NO_ROOM if got is None else judge_allocation(got, stage.share.bytes, "the share")


async def _off(stage: ExperimentStage) -> AttackOutcome:
    got = await _filled(stage, TenantMode.WITH_GUARD, {"PARTAGE_GUARD": "off"})
    return NO_ROOM if got is None else _without_limit(stage, got)


def _without_limit(stage: ExperimentStage, got: Allocated) -> AttackOutcome:
    share = stage.share
    if was_held(got, share.bytes):
        return kept(f"{amount(got)}: held, although nothing is promised")
    return got_around(share, f"{amount(got)}, with a share of {format_bytes(share.bytes)}")


ATTACKS = (
    Attack(
        "slicing-over-share",
        "time-slicing",
        Guarantee.NONE,
        "Nothing limits a tenant's memory.",
        "A tenant allocates in pieces up to five quarters of its share.",
        _unlimited,
        _unheld,
        frozenset({AttackNeed.GPU}),
    ),
    Attack(
        "guard-over-share",
        "time-slicing, guard",
        Guarantee.ADVISORY,
        "A PyTorch program that wants more than its share gets out of memory.",
        "A tenant with the guard allocates in pieces up to five quarters of its share, through PyTorch.",
        lambda share: share.guarded_by_framework,
        _capped,
        frozenset({AttackNeed.GPU, AttackNeed.TORCH}),
    ),
    Attack(
        "guard-off",
        "time-slicing, guard",
        Guarantee.ADVISORY,
        "A tenant can drop the guard, and then nothing limits its memory.",
        "The same with PARTAGE_GUARD=off.",
        lambda share: share.guarded_by_framework,
        _off,
        frozenset({AttackNeed.GPU, AttackNeed.TORCH}),
    ),
)

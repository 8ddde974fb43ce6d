"""Time-slicing: nothing limits a tenant but the guard, which it can drop."""

from __future__ import annotations

from functools import partial

from partage.lab.place import TenantMode
from partage.lab.prove.attack import attack
from partage.lab.prove.model import AttackOutcome, kept
from partage.lab.prove.outcomes import (
    above_limit,
    allocated_words,
    allocation_outcome,
    limit_avoided,
    shared_by,
    was_limited,
)
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import (
    UNCHANGED,
    Allocated,
    AttackNeed,
    ExperimentStage,
    VariableChanges,
    allocate_in_pieces,
)
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.units import format_bytes

_is_sliced = partial(shared_by, Strategy.TIME_SLICING)


def _unlimited(share: PromisedShare) -> bool:
    return _is_sliced(share) and not share.guarded_by_framework and not share.offering.limited


async def _filled(
    stage: ExperimentStage, mode: TenantMode | None, changes: VariableChanges = UNCHANGED
) -> Allocated:
    """What a tenant gets that wants more than its share."""
    share = stage.share
    most = above_limit(share.bytes, share.device_bytes)
    return await allocate_in_pieces(await stage.tenant(changes, mode=mode), share.bytes, most)


@attack(
    "slicing-over-share", "time-slicing", Guarantee.NONE, AttackNeed.GPU,
    promised="Nothing limits a tenant's memory.",
    tried="A tenant allocates in pieces up to five quarters of its share.",
    on=_unlimited,
)  # fmt: skip
async def _unheld(stage: ExperimentStage) -> AttackOutcome:
    return _without_limit(stage, await _filled(stage, None))


@attack(
    "guard-over-share", "time-slicing, guard", Guarantee.ADVISORY, AttackNeed.GPU, AttackNeed.TORCH,
    promised="A PyTorch program that wants more than its share gets out of memory.",
    tried="A tenant with the guard allocates in pieces up to five quarters of its share, through PyTorch.",
    on=lambda share: share.guarded_by_framework,
)  # fmt: skip
async def _capped(stage: ExperimentStage) -> AttackOutcome:
    got = await _filled(stage, TenantMode.WITH_GUARD)
    return allocation_outcome(got, stage.share.bytes, "the share")


@attack(
    "guard-off", "time-slicing, guard", Guarantee.ADVISORY, AttackNeed.GPU, AttackNeed.TORCH,
    promised="A tenant can drop the guard, and then nothing limits its memory.",
    tried="The same with PARTAGE_GUARD=off.",
    on=lambda share: share.guarded_by_framework,
)  # fmt: skip
async def _off(stage: ExperimentStage) -> AttackOutcome:
    got = await _filled(stage, TenantMode.WITH_GUARD, {"PARTAGE_GUARD": "off"})
    return _without_limit(stage, got)


def _without_limit(stage: ExperimentStage, got: Allocated) -> AttackOutcome:
    share = stage.share
    if was_limited(got, share.bytes):
        return kept(f"{allocated_words(got)}: limited, although nothing is promised")
    return limit_avoided(share, f"{allocated_words(got)}, with a share of {format_bytes(share.bytes)}")


ATTACKS = (_unheld, _capped, _off)

"""MPS: the daemon's memory limit, and what a tenant's own variables do to it."""

from __future__ import annotations

from functools import partial

from partage.lab.place import MEMORY_VARIABLE
from partage.lab.prove.attack import (
    above_limit,
    allocate_beside,
    allocate_beyond,
    allocated_words,
    allocation_outcome,
    attack,
    limit_avoided,
    require_working,
    shared_by,
    was_limited,
)
from partage.lab.prove.model import AttackOutcome, kept, not_tried, weaker
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import Allocated, CannotTry, ExperimentStage, allocate_in_pieces
from partage.lab.tenant import CUDA_NEEDS_BYTES, OK, beyond_bytes, data_bytes, piece_bytes
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.units import MIB, format_bytes

_UNSEEN_GPU = "GPU-00000000-0000-0000-0000-000000000000"

is_mps = partial(shared_by, Strategy.MPS)


def _by_daemon(share: PromisedShare) -> bool:
    return is_mps(share) and not share.by_variable


def _by_variable(share: PromisedShare) -> bool:
    return is_mps(share) and share.by_variable


@attack(
    "mps-below-limit", "MPS", Guarantee.GUARDED,
    promised=(
        "A client can have five sixths of its share for its data, of a small share all but 1 GiB; CUDA's own "
        "needs are in the rest."
    ),
    tried="A tenant allocates that much in one piece.",
    on=is_mps,
)  # fmt: skip
async def _below(stage: ExperimentStage) -> AttackOutcome:
    wanted = data_bytes(stage.share.bytes)
    if not wanted:
        raise CannotTry(f"CUDA's own needs may take all of a share of {format_bytes(stage.share.bytes)}")
    answer = await (await stage.tenant()).allocate(wanted)
    words = f"{format_bytes(wanted)} of {format_bytes(stage.share.bytes)}"
    return kept(f"it got {words}") if answer == OK else weaker(f"{words} were refused: {answer}")


@attack(
    "mps-over-limit", "MPS", Guarantee.GUARDED,
    promised="A client that wants more than its share gets out of memory, and its neighbours work on.",
    tried="A tenant allocates in pieces up to five quarters of its share, beside a neighbour that works.",
    on=is_mps,
)  # fmt: skip
async def _over(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    most = above_limit(share.bytes, share.device_bytes)
    neighbour = await stage.tenant()
    require_working(await neighbour.allocate(piece_bytes(share.bytes)), await neighbour.attempt("launch"))
    return await allocate_beside(stage, neighbour, share.bytes, most, "the share")


@attack(
    "mps-lower-memory", "MPS", Guarantee.ADVISORY,
    promised="A lower limit in the client's own variable holds: this is how unequal shares are made.",
    tried=f"A tenant sets {MEMORY_VARIABLE} to half of its share and allocates more than that.",
    on=_by_daemon,
)  # fmt: skip
async def _lowered(stage: ExperimentStage) -> AttackOutcome:
    half = max(stage.share.bytes // 2 // MIB, 1) * MIB
    tenant = await stage.tenant({MEMORY_VARIABLE: f"0={half // MIB}M"})
    return allocation_outcome(
        await allocate_in_pieces(tenant, half, beyond_bytes(half)), half, "the lower limit"
    )


@attack(
    "mps-raise-memory", "MPS", Guarantee.GUARDED,
    promised="The client's own variable can only lower the daemon's memory limit.",
    tried=f"A tenant sets {MEMORY_VARIABLE} to twice its share and allocates more than its share.",
    on=_by_daemon,
)  # fmt: skip
async def _raised(stage: ExperimentStage) -> AttackOutcome:
    return await _with_variable(stage, f"0={2 * stage.share.bytes // MIB}M")


@attack(
    "mps-unseen-gpu", "MPS", Guarantee.GUARDED,
    promised="An entry for a GPU that the client does not see may drop its own limits, not the daemon's.",
    tried=(
        f"A tenant sets {MEMORY_VARIABLE} to half of its share, adds an entry for a GPU that is not there, "
        "and allocates more than its share."
    ),
    on=_by_daemon,
)  # fmt: skip
async def _unseen(stage: ExperimentStage) -> AttackOutcome:
    return await _with_variable(stage, f"0={stage.share.bytes // 2 // MIB}M,{_UNSEEN_GPU}=1G")


@attack(
    "mps-drop-variable", "MPS", Guarantee.ADVISORY,
    promised="A smaller share's limit is a variable: a client that drops it has the largest share's limit.",
    tried=f"A tenant unsets {MEMORY_VARIABLE} and allocates more than the largest share.",
    on=_by_variable,
)  # fmt: skip
async def _dropped(stage: ExperimentStage) -> AttackOutcome:
    """Without the variable, the daemon's own limit is left, which is that of the largest share."""
    share, limit = stage.share, stage.share.largest_bytes
    got = await allocate_beyond(stage, limit, {MEMORY_VARIABLE: None})
    if not was_limited(got, limit):
        return allocation_outcome(got, limit, "the daemon's limit")
    if got.bytes <= share.bytes:
        return kept(f"{allocated_words(got)}: not more than its share of {format_bytes(share.bytes)}")
    return limit_avoided(share, f"{allocated_words(got)}, with a share of {format_bytes(share.bytes)}")


async def _with_variable(stage: ExperimentStage, value: str) -> AttackOutcome:
    """What a tenant got that sets its limit itself, compared with the daemon's limit."""
    share = stage.share
    got = await allocate_beyond(stage, share.bytes, {MEMORY_VARIABLE: value})
    if was_limited(got, share.bytes):
        return kept(f"{allocated_words(got)}: {_which_held(share, got)}")
    if got.bytes <= share.bytes:
        return not_tried(f"it did not reach the limit: {allocated_words(got)}")
    return limit_avoided(
        share, f"{allocated_words(got)}, over the daemon's limit of {format_bytes(share.bytes)}"
    )


def _which_held(share: PromisedShare, got: Allocated) -> str:
    if got.bytes > share.bytes // 2:
        return "the daemon's limit held"
    # CUDA's own needs may have taken the other half of a small share.
    small = got.bytes >= share.bytes - CUDA_NEEDS_BYTES
    return "a limit held, the daemon's or its own" if small else "its own limit held"


ATTACKS = (_below, _over, _raised, _lowered, _unseen, _dropped)

"""Attacks as values: what each of them tests, on which shares, and how; and what they have in common: how far
beyond a limit is tried, and what the answers mean.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from partage.lab.place import TenantMode
from partage.lab.prove.model import AttackOutcome, AttackWords, broken, kept, not_tried, weaker
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import (
    UNCHANGED,
    Allocated,
    AttackNeed,
    CannotTry,
    ExperimentStage,
    VariableChanges,
    allocate_in_pieces,
)
from partage.lab.tenant import OK, OUT_OF_MEMORY, NotConnected, TenantProcess, beyond_bytes, has_room
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.units import format_bytes

Act = Callable[[ExperimentStage], Awaitable[AttackOutcome]]


class Attack(AttackWords):
    """One way to break one promise. guarantee: what a share states where a node offers none. on: whether a
    share makes the promise. act: raises TenantFailed, CannotTry where it could not be tried.
    """

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


_WAIT_LIMIT_S = 2.0
"""How long a new client may wait before it counts as waiting."""


def shared_by(strategy: Strategy, share: PromisedShare) -> bool:
    """Whether the device, a whole GPU or a MIG device, is shared in that way."""
    return share.offering.shared is strategy


def require_working(*answers: str) -> None:
    """Raises CannotTry where tenants fail before the attack."""
    if set(answers) != {OK}:
        raise CannotTry(f"the tenants did not work to begin with: {', '.join(answers)}")


async def make_fault(tenant: TenantProcess) -> str:
    """What the tenant is answered whose kernel faults. Raises CannotTry where it does not, TenantLost."""
    answer = await tenant.attempt("fault")
    if answer == OK:
        raise CannotTry("the kernel that was to fault did not")
    return answer


async def new_client(stage: ExperimentStage) -> str:
    """What happens to a client that comes now."""
    try:
        entered = await (await stage.begin()).connected(_WAIT_LIMIT_S)
    except NotConnected as refused:
        return f"was refused ({refused})"
    return "was served" if entered else "had to wait"


def above_limit(limit_bytes: int, device_bytes: int) -> int:
    """How much to ask for so that the limit and not the device refuses. Raises CannotTry where the device
    has no room for that.
    """
    return at_most_of_device(beyond_bytes(limit_bytes), device_bytes)


def at_most_of_device(amount_bytes: int, device_bytes: int) -> int:
    """The amount. Raises CannotTry where the device may refuse it by itself (``has_room``)."""
    if not has_room(amount_bytes, device_bytes):
        raise CannotTry(
            "the share is so large a part of the device that its limit cannot be told from the device's own"
        )
    return amount_bytes


async def allocate_beyond(
    stage: ExperimentStage,
    limit_bytes: int,
    changes: VariableChanges = UNCHANGED,
    *,
    mode: TenantMode | None = None,
    through: tuple[str, ...] = (),
    piece: int | None = None,
) -> Allocated:
    """What a tenant gets that takes pieces up to five quarters of a limit. Raises as ``above_limit``."""
    most = above_limit(limit_bytes, stage.share.device_bytes)
    tenant = await stage.tenant(changes, mode=mode, through=through)
    return await allocate_in_pieces(tenant, limit_bytes, most, piece=piece)


async def allocate_beside(
    stage: ExperimentStage, neighbour: TenantProcess | None, limit_bytes: int, most_bytes: int, limit: str
) -> AttackOutcome:
    """The outcome for a tenant that allocates up to a limit, beside a neighbour that has to work on."""
    got = await allocate_in_pieces(await stage.tenant(), limit_bytes, most_bytes)
    if neighbour is None:
        return allocation_outcome(got, limit_bytes, limit)
    if (after := await neighbour.attempt("launch")) != OK:
        return broken(f"{allocated_words(got)}; the neighbour failed: {after}")
    outcome = allocation_outcome(got, limit_bytes, limit)
    return AttackOutcome(outcome.verdict, f"{outcome.seen}; the neighbour works on")


def was_limited(got: Allocated, limit_bytes: int) -> bool:
    """It got no more than the limit, and was refused as out of memory."""
    return got.bytes <= limit_bytes and got.answer == OUT_OF_MEMORY


def allocated_words(got: Allocated) -> str:
    """``it got 18.6 GiB, then CUDA_ERROR_OUT_OF_MEMORY``."""
    end = "and was not stopped" if got.answer == OK else f"then {got.answer}"
    return f"it got {format_bytes(got.bytes)}, {end}"


def limit_avoided(share: PromisedShare, seen: str) -> AttackOutcome:
    """A tenant avoided the limit on purpose: kept where the share is advisory, else weaker than promised."""
    if share.offering.guarantee.strength > Guarantee.ADVISORY.strength:
        return weaker(seen)
    return kept(f"{seen}: no more is stated than {share.offering.guarantee}")


def allocation_outcome(got: Allocated, limit_bytes: int, limit_words: str) -> AttackOutcome:
    """The outcome for a tenant that did nothing but allocate."""
    if got.bytes > limit_bytes:
        return broken(f"{allocated_words(got)}, over {limit_words} of {format_bytes(limit_bytes)}")
    if got.answer != OUT_OF_MEMORY:
        return not_tried(f"it did not reach the limit: {allocated_words(got)}")
    return kept(f"{allocated_words(got)}; {limit_words} is {format_bytes(limit_bytes)}")

"""Walks every attack over every share, one after the other, and writes down what became of each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack

from partage.errors import InputError, PartageError
from partage.faces.prove import exclusive, mig, mps_bypass, mps_faults, mps_memory, mps_tenants, slicing
from partage.faces.prove.attack import Attack
from partage.faces.prove.model import Evidence, Outcome, Row, Verdict, not_tried
from partage.faces.prove.share import Share
from partage.faces.prove.stage import Engine, Ground, Need, Stage
from partage.faces.prove.tenant import Lost, NotLetIn
from partage.faces.words import count_of

CATALOGUE: tuple[Attack, ...] = (
    *exclusive.ATTACKS,
    *mig.ATTACKS,
    *mps_memory.ATTACKS,
    *mps_tenants.ATTACKS,
    *mps_bypass.ATTACKS,
    *mps_faults.ATTACKS,
    *slicing.ATTACKS,
)

NOT_OFFERED = not_tried("nothing that is offered here makes this promise")


def named(names: Sequence[str]) -> tuple[Attack, ...]:
    """The attacks of these names, all for none. Raises InputError for a name that is none."""
    known = {attack.name: attack for attack in CATALOGUE}
    if wrong := [name for name in names if name not in known]:
        raise InputError(f"no attack is called {wrong[0]!r}", f"there are {', '.join(known)}")
    return tuple(attack for attack in CATALOGUE if not names or attack.name in names)


async def walk(
    engine: Engine, shares: Sequence[Share], attacks: Sequence[Attack], tell: Callable[[str], None]
) -> AsyncIterator[Row]:
    """A row for each promise of each share, then one for each promise that nothing here makes."""
    for share in shares:
        async for row in _on(engine, share, [attack for attack in attacks if attack.on(share)], tell):
            yield row
    for attack in attacks:
        if not any(attack.on(share) for share in shares):
            yield _row(attack, NOT_OFFERED, Evidence.DOCUMENTED)


async def _on(
    engine: Engine, share: Share, attacks: Sequence[Attack], tell: Callable[[str], None]
) -> AsyncIterator[Row]:
    """All that can be tried on one share. What surrounds it is set up once, and only if it is needed."""
    async with AsyncExitStack() as around:
        ground: Ground | str | None = None
        for attack in attacks:
            lack = lacking(engine, attack, share)
            if not lack:
                tell(f"GPU {share.offering.gpu_index}, {share.offering.resource}: {attack.name}")
                if ground is None:
                    ground = await _ground(engine, share, around)
                lack = ground if isinstance(ground, str) else ""
            if lack or not isinstance(ground, Ground):
                yield _row(attack, not_tried(lack), Evidence.DOCUMENTED, share)
                continue
            outcome = await attempt(attack, Stage(engine, share, ground))
            yield _row(attack, outcome, engine.evidence, share)


async def _ground(engine: Engine, share: Share, around: AsyncExitStack) -> Ground | str:
    """What surrounds a share, or why it cannot be had."""
    try:
        return await around.enter_async_context(engine.ground(share))
    except Lost as error:
        return str(error)


def lacking(engine: Engine, attack: Attack, share: Share) -> str:
    """Why an attack is not tried, a clause; empty where nothing is missing."""
    if share.offering.planned:
        return "the MIG device has still to be made"
    if Need.NEIGHBOUR in attack.needs and len(share.mig) < 2:
        return "the GPU has no second MIG device"
    return next((why for need in Need if need in attack.needs and (why := engine.lacks(need))), "")


async def attempt(attack: Attack, stage: Stage) -> Outcome:
    """One attack, where nobody else can be hit; none of its tenants is left."""
    try:
        if holder := await stage.engine.holder(stage.share.offering.gpu):
            return not_tried(f"{holder} has come to the GPU")
    except PartageError as error:
        return not_tried(f"who else is on the GPU could not be asked: {error}")
    others = await stage.others()
    if others:
        return not_tried(f"the daemon has {count_of(others, 'other client')}")
    if others is None and Need.FAULTS in attack.needs:
        return not_tried("the daemon cannot be asked whether it has other clients")
    try:
        outcome = await attack.act(stage)
    except NotLetIn as refused:
        outcome = not_tried(f"a tenant got no context: {refused}")
    except Lost as lost:
        outcome = not_tried(str(lost))
    finally:
        await stage.leave()
    await stage.settled()
    if stage.unverified and outcome.verdict in (Verdict.BROKEN, Verdict.WEAKER):
        # Who is held by the daemon is its client for certain; who is not may have worked beside it.
        return not_tried(f"nobody can say whether the tenants were clients of the daemon: {outcome.seen}")
    return outcome


def _row(attack: Attack, outcome: Outcome, evidence: Evidence, share: Share | None = None) -> Row:
    """What was not tried is known from documents alone."""
    return Row(
        attack=attack.name,
        strategy=attack.strategy,
        guarantee=attack.guarantee if share is None else share.offering.guarantee,
        promised=attack.promised,
        tried=attack.tried,
        outcome=outcome,
        evidence=Evidence.DOCUMENTED if outcome.verdict is Verdict.NOT_TRIED else evidence,
        share=None if share is None else share.which,
    )

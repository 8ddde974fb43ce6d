"""Tries every attack on every share, one after the other, and records the outcome of each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack

from partage.errors import InputError, PartageError
from partage.lab.prove import (
    mps_commands,
    mps_memory,
    mps_tenants,
    slicing,
    whole_devices,
)
from partage.lab.prove.attack import Attack
from partage.lab.prove.model import AttackOutcome, EvidenceKind, ProofRow, ProofVerdict, not_tried
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, CannotTry, ExperimentStage, ProofEngine, ShareSetup
from partage.lab.tenant import NotConnected, TenantFailed
from partage.text import count_of

CATALOGUE: tuple[Attack, ...] = (
    *whole_devices.ATTACKS,
    *mps_memory.ATTACKS,
    *mps_tenants.ATTACKS,
    *mps_commands.ATTACKS,
    *slicing.ATTACKS,
)

NOT_OFFERED = not_tried("nothing that is offered here makes this promise")


def attacks_named(names: Sequence[str]) -> tuple[Attack, ...]:
    """The attacks of these names; all without names. Raises InputError for an unknown name."""
    known = {attack.name: attack for attack in CATALOGUE}
    if wrong := [name for name in names if name not in known]:
        raise InputError(f"no attack is called {wrong[0]!r}", f"there are {', '.join(known)}")
    return tuple(attack for attack in CATALOGUE if not names or attack.name in names)


async def run_attacks(
    engine: ProofEngine,
    shares: Sequence[PromisedShare],
    attacks: Sequence[Attack],
    tell: Callable[[str], None],
) -> AsyncIterator[ProofRow]:
    """A row for each promise of each share, then one for each promise that nothing here makes."""
    for share in shares:
        async for row in _on(engine, share, [attack for attack in attacks if attack.on(share)], tell):
            yield row
    for attack in attacks:
        if not any(attack.on(share) for share in shares):
            yield _row(attack, NOT_OFFERED, EvidenceKind.DOCUMENTED)


async def _on(
    engine: ProofEngine, share: PromisedShare, attacks: Sequence[Attack], tell: Callable[[str], None]
) -> AsyncIterator[ProofRow]:
    """All attacks on one share. Its setup is made once, and only if an attack needs it."""
    async with AsyncExitStack() as around:
        setup: ShareSetup | str | None = None
        for attack in attacks:
            lack = missing_need(engine, attack, share)
            if not lack:
                tell(f"GPU {share.offering.gpu_index}, {share.offering.resource}: {attack.name}")
                if setup is None:
                    setup = await _setup(engine, share, around)
                lack = setup if isinstance(setup, str) else ""
            if lack or not isinstance(setup, ShareSetup):
                yield _row(attack, not_tried(lack), EvidenceKind.DOCUMENTED, share)
                continue
            outcome = await attempt(attack, ExperimentStage(engine, share, setup))
            yield _row(attack, outcome, engine.evidence, share)


async def _setup(engine: ProofEngine, share: PromisedShare, around: AsyncExitStack) -> ShareSetup | str:
    """What surrounds a share, or why it cannot be had."""
    try:
        return await around.enter_async_context(engine.setup(share))
    except CannotTry as error:
        return str(error)


def missing_need(engine: ProofEngine, attack: Attack, share: PromisedShare) -> str:
    """Why an attack is not tried, a clause; empty where nothing is missing."""
    if share.offering.planned:
        return "the MIG device has still to be created"
    if AttackNeed.NEIGHBOUR in attack.needs and len(share.mig) < 2:
        return "the GPU has no second MIG device"
    return next((why for need in AttackNeed if need in attack.needs and (why := engine.lacks(need))), "")


async def attempt(attack: Attack, stage: ExperimentStage) -> AttackOutcome:
    """One attack, if it cannot hit other processes; none of its tenants is left."""
    try:
        if holder := await stage.engine.holder(stage.share.offering.gpu):
            return not_tried(f"{holder} has come to the GPU")
    except PartageError as error:
        return not_tried(f"it could not be asked what else uses the GPU: {error}")
    others = await stage.others()
    if others:
        return not_tried(f"the daemon has {count_of(others, 'other client')}")
    if others is None and AttackNeed.FAULTS in attack.needs:
        return not_tried("the daemon cannot be asked whether it has other clients")
    try:
        outcome = await attack.act(stage)
    except NotConnected as refused:
        outcome = not_tried(f"a tenant got no context: {refused}")
    except (TenantFailed, CannotTry) as error:
        outcome = not_tried(str(error))
    finally:
        await stage.end()
    await stage.settled()
    if stage.unverified and outcome.verdict in (ProofVerdict.BROKEN, ProofVerdict.WEAKER):
        # A tenant that the daemon limits is its client; any other may have worked beside it.
        return not_tried(f"it is not known whether the tenants were clients of the daemon: {outcome.seen}")
    return outcome


def _row(
    attack: Attack, outcome: AttackOutcome, evidence: EvidenceKind, share: PromisedShare | None = None
) -> ProofRow:
    """What was not tried is known from documents alone."""
    tried = outcome.verdict is not ProofVerdict.NOT_TRIED
    return ProofRow(
        name=attack.name,
        strategy=attack.strategy,
        guarantee=attack.guarantee if share is None else share.offering.guarantee,
        promised=attack.promised,
        tried=attack.tried,
        verdict=outcome.verdict,
        seen=outcome.seen if tried else "",
        reason="" if tried else outcome.seen,
        evidence=evidence if tried else EvidenceKind.DOCUMENTED,
        share=None if share is None else share.attacked,
    )

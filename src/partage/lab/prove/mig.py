"""MIG: memory and faults stay within a MIG device."""

from __future__ import annotations

from partage.lab.prove.attack import attack
from partage.lab.prove.model import AttackOutcome, broken, kept
from partage.lab.prove.outcomes import allocate_beside, make_fault, require_working
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, ExperimentStage
from partage.lab.tenant import OK
from partage.model.share import Guarantee


def _alone_on_mig(share: PromisedShare) -> bool:
    return (
        bool(share.mig)
        and not share.offering.traits.in_shares
        and share.offering.guarantee is not Guarantee.NONE
    )


@attack(
    "mig-memory", "MIG", Guarantee.HARD, AttackNeed.GPU,
    promised="A tenant has the memory of its MIG device and no more; its neighbours work on.",
    tried="A tenant allocates in pieces up to nine eighths of its MIG device, beside a neighbour on another.",
    on=_alone_on_mig,
)  # fmt: skip
async def _over(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    neighbour = await stage.tenant(number=1) if len(share.mig) > 1 else None
    most = share.device_bytes * 9 // 8
    return await allocate_beside(stage, neighbour, share.device_bytes, most, "the MIG device")


@attack(
    "mig-neighbours-fault", "MIG", Guarantee.HARD, AttackNeed.GPU, AttackNeed.FAULTS, AttackNeed.NEIGHBOUR,
    promised="A fault on one MIG device does not reach another.",
    tried="A kernel on another MIG device of the same GPU writes to an invalid address.",
    on=_alone_on_mig,
)  # fmt: skip
async def _fault(stage: ExperimentStage) -> AttackOutcome:
    neighbour, faulting = await stage.tenant(), await stage.tenant(number=1)
    require_working(await neighbour.attempt("launch"), await faulting.attempt("launch"))
    answer = await make_fault(faulting)
    after = await neighbour.attempt("launch")
    if after != OK:
        return broken(f"the fault ({answer}) reached the other MIG device: {after}")
    return kept(f"the fault ended the tenant that made it ({answer}), and the other MIG device works on")


ATTACKS = (_over, _fault)

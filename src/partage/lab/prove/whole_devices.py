"""Whole devices, which the hardware keeps apart. An exclusive GPU: its tenant sees that GPU and no other.
MIG: memory and faults stay within a MIG device.
"""

from __future__ import annotations

import os

from partage.lab.prove.attack import allocate_beside, attack, make_fault, require_working
from partage.lab.prove.model import AttackOutcome, broken, kept
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, ExperimentStage
from partage.lab.tenant import OK, TenantProcess
from partage.model.share import Guarantee


def _whole(share: PromisedShare) -> bool:
    return not share.offering.traits.in_shares and not share.mig


@attack(
    "exclusive-sees-its-own", "exclusive", Guarantee.HARD, AttackNeed.GPU,
    promised="A tenant that is shown one GPU sees that one.",
    tried="A tenant with the GPU's UUID in CUDA_VISIBLE_DEVICES lists its devices.",
    on=_whole,
)  # fmt: skip
async def _shown(stage: ExperimentStage) -> AttackOutcome:
    return await _compared(await stage.tenant(), [stage.share.offering.device])


@attack(
    "exclusive-sees-no-other", "exclusive", Guarantee.HARD, AttackNeed.GPU, AttackNeed.CONTAINER,
    promised="A container has its own GPUs' device files: without CUDA_VISIBLE_DEVICES it sees no other.",
    tried="In a container that holds shares, a tenant without CUDA_VISIBLE_DEVICES lists its devices.",
    on=_whole,
)  # fmt: skip
async def _unmasked(stage: ExperimentStage) -> AttackOutcome:
    tenant = await stage.tenant({"CUDA_VISIBLE_DEVICES": None})
    return await _compared(tenant, os.environ.get("PARTAGE_GPUS", "").split(","))


async def _compared(tenant: TenantProcess, promised: list[str]) -> AttackOutcome:
    """UUIDs are compared without their first part: CUDA does not say whether it is a MIG device."""
    found = (await tenant.ask("facts"))["devices"]
    known = {uuid.removeprefix("GPU-").removeprefix("MIG-") for uuid in promised}
    seen = f"it sees {','.join(found)}"
    return kept(seen) if known.issuperset(found) else broken(seen)


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


ATTACKS = (_shown, _unmasked, _over, _fault)

"""An exclusive GPU: its tenant sees that GPU and no other."""

from __future__ import annotations

import os

from partage.lab.prove.attack import attack
from partage.lab.prove.model import AttackOutcome, broken, kept
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, ExperimentStage
from partage.lab.tenant import TenantProcess
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


ATTACKS = (_shown, _unmasked)

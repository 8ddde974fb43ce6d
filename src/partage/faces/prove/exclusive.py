"""An exclusive GPU: its tenant sees that one, and no other."""

from __future__ import annotations

import os

from partage.faces.prove.attack import Attack
from partage.faces.prove.model import Outcome, broken, kept
from partage.faces.prove.share import Share
from partage.faces.prove.stage import Need, Stage
from partage.model.policy import Strategy
from partage.model.share import Guarantee


def _whole(share: Share) -> bool:
    return share.offering.shared is Strategy.EXCLUSIVE and not share.mig


async def _shown(stage: Stage) -> Outcome:
    return _compared(await (await stage.tenant()).ask("devices"), [stage.share.offering.device])


async def _unmasked(stage: Stage) -> Outcome:
    tenant = await stage.tenant({"CUDA_VISIBLE_DEVICES": None})
    return _compared(await tenant.ask("devices"), os.environ.get("PARTAGE_GPUS", "").split(","))


def _compared(seen: str, promised: list[str]) -> Outcome:
    """UUIDs are compared without what they begin with: CUDA does not say whether it is a MIG device."""
    found = set(seen.split(","))
    known = {uuid.removeprefix("GPU-").removeprefix("MIG-") for uuid in promised}
    return kept(f"it sees {seen}") if found <= known else broken(f"it sees {seen}")


ATTACKS = (
    Attack(
        "exclusive-sees-its-own",
        "exclusive",
        Guarantee.HARD,
        "A tenant that is shown one GPU sees that one.",
        "A tenant with the GPU's UUID in CUDA_VISIBLE_DEVICES lists its devices.",
        _whole,
        _shown,
        frozenset({Need.GPU}),
    ),
    Attack(
        "exclusive-sees-no-other",
        "exclusive",
        Guarantee.HARD,
        "A container has the device files of its own GPUs: dropping CUDA_VISIBLE_DEVICES shows no other.",
        "In a container that holds shares, a tenant without CUDA_VISIBLE_DEVICES lists its devices.",
        _whole,
        _unmasked,
        frozenset({Need.GPU, Need.CONTAINER}),
    ),
)

"""MPS: which clients a fatal fault ends, and when new ones are served again."""

from __future__ import annotations

import asyncio

from partage.lab.prove.attack import attack
from partage.lab.prove.model import AttackOutcome, broken, kept
from partage.lab.prove.mps_memory import is_mps
from partage.lab.prove.outcomes import make_fault, new_client, require_working
from partage.lab.prove.stage import AttackNeed, CannotTry, ExperimentStage
from partage.lab.tenant import OK, TenantFailed
from partage.model.share import Guarantee

_SERVED_AGAIN_S, _AGAIN_S = 20.0, 0.05


@attack(
    "mps-neighbours-fault", "MPS", Guarantee.GUARDED, AttackNeed.FAULTS,
    promised=(
        "A fatal fault ends all clients of the GPU, and new ones are refused until all have gone; then new "
        "ones are served again. No other GPU is touched."
    ),
    tried="A tenant's kernel writes to an invalid address beside a neighbour; a new client comes; all leave.",
    on=is_mps,
)  # fmt: skip
async def _fault(stage: ExperimentStage) -> AttackOutcome:
    faulting, neighbour = await stage.tenant(), await stage.tenant()
    require_working(await faulting.attempt("launch"), await neighbour.attempt("launch"))
    await make_fault(faulting)
    after = await neighbour.attempt("launch")
    new = await new_client(stage)
    await stage.end()
    hit = "the neighbour worked on" if after == OK else f"the neighbour failed, too ({after})"
    seen = f"{hit}; a new client {new} meanwhile"
    again = await _served_again(stage)
    if again != OK:
        return broken(f"{seen}; after all had gone no new one was served for {_SERVED_AGAIN_S:g} s: {again}")
    return kept(f"{seen}; after all had gone a new one was served")


async def _served_again(stage: ExperimentStage) -> str:
    """``ok`` once a new client works; the answer to the last one where none does in time."""
    end = asyncio.get_running_loop().time() + _SERVED_AGAIN_S
    while True:
        try:
            answer = await (await stage.tenant()).attempt("launch")
        except (TenantFailed, CannotTry) as error:
            answer = str(error)
        await stage.end()
        if answer == OK or asyncio.get_running_loop().time() > end:
            return answer
        await asyncio.sleep(_AGAIN_S)


ATTACKS = (_fault,)

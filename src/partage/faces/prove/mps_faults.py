"""MPS: whom a client's fatal fault hits, and what comes afterwards."""

from __future__ import annotations

import asyncio

from partage.faces.prove.attack import Attack
from partage.faces.prove.model import Outcome, broken, kept, not_tried
from partage.faces.prove.mps_memory import is_mps
from partage.faces.prove.stage import Need, Stage
from partage.faces.prove.tenant import OK, Lost, NotLetIn
from partage.model.share import Guarantee

_SERVED_AGAIN_S, _AGAIN_S = 20.0, 0.05
_PATIENCE_S = 2.0
"""How long a newcomer may wait during the fault before it counts as waiting."""


async def _fault(stage: Stage) -> Outcome:
    culprit, neighbour = await stage.tenant(), await stage.tenant()
    before = [await culprit.launch(), await neighbour.launch()]
    if before != [OK, OK]:
        return not_tried(f"the tenants did not work to begin with: {', '.join(before)}")
    if await culprit.ask("fault") == OK:
        return not_tried("the kernel that was to fault did not")
    after = await neighbour.launch()
    newcomer = await _newcomer(stage)
    await stage.leave()
    hit = "the neighbour worked on" if after == OK else f"the neighbour failed, too ({after})"
    seen = f"{hit}; a new client {newcomer} meanwhile"
    again = await _served_again(stage)
    if again != OK:
        return broken(f"{seen}; after all had gone no new one was served for {_SERVED_AGAIN_S:g} s: {again}")
    return kept(f"{seen}; after all had gone a new one was served")


async def _newcomer(stage: Stage) -> str:
    """What becomes of one that comes during the fault."""
    try:
        entered = await (await stage.begins()).entered(_PATIENCE_S)
    except NotLetIn as refused:
        return f"was refused ({refused})"
    return "was served" if entered else "had to wait"


async def _served_again(stage: Stage) -> str:
    """``ok`` once a new client works; what the last one was answered where none does in time."""
    end = asyncio.get_running_loop().time() + _SERVED_AGAIN_S
    while True:
        try:
            answer = await (await stage.tenant()).launch()
        except (NotLetIn, Lost) as error:
            answer = str(error)
        await stage.leave()
        if answer == OK or asyncio.get_running_loop().time() > end:
            return answer
        await asyncio.sleep(_AGAIN_S)


ATTACKS = (
    Attack(
        "mps-neighbours-fault",
        "MPS",
        Guarantee.GUARDED,
        "Clients of one GPU share their fate: a fatal fault ends all of them, and new ones are refused until "
        "all have gone; then new ones are served again. No other GPU is touched.",
        "A tenant's kernel writes where nothing is; a neighbour computes, a new client comes, all leave.",
        is_mps,
        _fault,
        frozenset({Need.FAULTS}),
    ),
)

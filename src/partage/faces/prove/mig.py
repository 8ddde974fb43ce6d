"""MIG: memory and faults stay within a MIG device."""

from __future__ import annotations

from partage.faces.prove.attack import Attack
from partage.faces.prove.judge import amount, merely_worked
from partage.faces.prove.model import Outcome, broken, kept, not_tried
from partage.faces.prove.share import Share
from partage.faces.prove.stage import Need, Stage, fill
from partage.faces.prove.tenant import OK
from partage.model.policy import Strategy
from partage.model.share import Guarantee


def _alone_on_mig(share: Share) -> bool:
    return (
        bool(share.mig)
        and share.offering.shared is Strategy.EXCLUSIVE
        and share.offering.guarantee is not Guarantee.NONE
    )


async def _over(stage: Stage) -> Outcome:
    share = stage.share
    neighbour = await stage.tenant(number=1) if len(share.mig) > 1 else None
    got = await fill(await stage.tenant(), share.device_bytes, share.device_bytes * 9 // 8)
    if neighbour is not None and (after := await neighbour.launch()) != OK:
        return broken(f"{amount(got)}; the neighbour failed: {after}")
    outcome = merely_worked(got, share.device_bytes, "the MIG device")
    beside = "" if neighbour is None else "; the neighbour works on"
    return Outcome(outcome.verdict, outcome.seen + beside)


async def _fault(stage: Stage) -> Outcome:
    victim, culprit = await stage.tenant(), await stage.tenant(number=1)
    before = [await victim.launch(), await culprit.launch()]
    if before != [OK, OK]:
        return not_tried(f"the tenants did not work to begin with: {', '.join(before)}")
    fault = await culprit.ask("fault")
    if fault == OK:
        return not_tried("the kernel that was to fault did not")
    after = await victim.launch()
    if after != OK:
        return broken(f"the fault ({fault}) reached the other MIG device: {after}")
    return kept(f"the fault ended who made it ({fault}), and the other MIG device works on")


ATTACKS = (
    Attack(
        "mig-memory",
        "MIG",
        Guarantee.HARD,
        "A tenant has the memory of its MIG device and none beyond; its neighbours go on.",
        "A tenant allocates in pieces up to nine eighths of its MIG device, beside a neighbour on another.",
        _alone_on_mig,
        _over,
        frozenset({Need.GPU}),
    ),
    Attack(
        "mig-neighbours-fault",
        "MIG",
        Guarantee.HARD,
        "A fault on one MIG device does not reach another.",
        "A kernel on another MIG device of the same GPU writes where nothing is.",
        _alone_on_mig,
        _fault,
        frozenset({Need.GPU, Need.FAULTS, Need.NEIGHBOUR}),
    ),
)

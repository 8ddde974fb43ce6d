"""MPS: several processes of one tenant, tenants of several users, and the ceiling of compute."""

from __future__ import annotations

import asyncio
import os

from partage.lab.place import THREADS_VARIABLE
from partage.lab.prove.attack import at_most_of_device, attack, limit_avoided
from partage.lab.prove.model import AttackOutcome, broken, kept, not_tried
from partage.lab.prove.mps_memory import is_mps
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, ExperimentStage, allocate_in_pieces
from partage.lab.tenant import OK, OUT_OF_MEMORY, data_bytes
from partage.model.share import Guarantee
from partage.units import format_bytes

OTHER_UID = 65534
_PATIENCE = 5
"""How many times as long as the first user's tenant the second's may take before it counts as waiting."""


def _has_ceiling(share: PromisedShare) -> bool:
    return is_mps(share) and not share.by_variable and (share.largest_threads or 100) < 100


@attack(
    "mps-two-processes", "MPS", Guarantee.GUARDED,
    promised=(
        "The limit is each process's: several in one container can have a multiple of the share, which the "
        "watchdog reports."
    ),
    tried="Two processes of one tenant allocate in pieces, each up to five sixths of the share.",
    on=is_mps,
)  # fmt: skip
async def _two_processes(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    each = at_most_of_device(2 * (share.bytes * 5 // 6), share.device_bytes) // 2
    process, other = await stage.tenant(), await stage.tenant()
    got = [await allocate_in_pieces(tenant, share.bytes, each) for tenant in (process, other)]
    together, size = sum(one.bytes for one in got), format_bytes(share.bytes)
    if together > share.bytes:
        return kept(f"two processes got {format_bytes(together)} together, with a share of {size}")
    if got[1].answer == OUT_OF_MEMORY and together < 2 * data_bytes(share.bytes):
        return kept(f"the second process was refused: together they are held to the share of {size}")
    answers = ", ".join(one.answer for one in got)
    return not_tried(f"the processes did not reach their limits: {format_bytes(together)}, {answers}")


@attack(
    "mps-two-users", "MPS", Guarantee.GUARDED, AttackNeed.ROOT,
    promised="Tenants of two users are both served: beside each other, or one after the other.",
    tried=f"A tenant of user {OTHER_UID} comes while one of this user works.",
    on=is_mps,
)  # fmt: skip
async def _two_users(stage: ExperimentStage) -> AttackOutcome:
    clock = asyncio.get_running_loop()
    began = clock.time()
    first = await stage.tenant()
    patience_s = 1.0 + _PATIENCE * (clock.time() - began)
    second = await stage.begin(uid=OTHER_UID)
    beside = await second.connected(patience_s)
    if beside:
        answers = [await first.attempt("launch"), await second.attempt("launch")]
        seen = f"users {os.geteuid()} and {OTHER_UID} worked beside each other"
    else:
        await stage.end(first)
        await second.connected()
        answers = [await second.attempt("launch")]
        seen = f"user {OTHER_UID} waited until the client of user {os.geteuid()} had gone, then worked"
    return kept(seen) if set(answers) == {OK} else broken(f"a client failed: {', '.join(answers)}")


@attack(
    "mps-raise-threads", "MPS", Guarantee.GUARDED, AttackNeed.GPU,
    promised="The client's own variable can only lower the daemon's ceiling of compute.",
    tried=f"Multiprocessors are counted without {THREADS_VARIABLE}, with 100, and with half of the share.",
    on=_has_ceiling,
)  # fmt: skip
async def _threads(stage: ExperimentStage) -> AttackOutcome:
    """One tenant after the other, so that the numbers do not depend on other clients."""
    found: list[int] = []
    for value in (None, "100", str(max((stage.share.largest_threads or 100) // 2, 1))):
        tenant = await stage.tenant({THREADS_VARIABLE: value})
        found.append((await tenant.ask("facts"))["multiprocessors"])
        await stage.end(tenant)
    plain, raised, lowered = found
    seen = f"{plain} multiprocessors; {raised} with 100 in the variable, {lowered} with half of its share"
    return kept(seen) if raised <= plain else limit_avoided(stage.share, seen)


ATTACKS = (_threads, _two_processes, _two_users)

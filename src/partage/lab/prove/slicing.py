"""Time-slicing: nothing limits a tenant but the guard, which it can drop; with the driver's memory limits its
cgroup holds it, whatever it does itself.
"""

from __future__ import annotations

from functools import partial

from partage.lab.place import MEMORY_VARIABLE, TenantMode
from partage.lab.prove.attack import (
    above_limit,
    allocated_words,
    allocation_outcome,
    attack,
    limit_avoided,
    require_working,
    shared_by,
    was_limited,
)
from partage.lab.prove.limited_cgroup import INSIDE
from partage.lab.prove.model import AttackOutcome, broken, kept
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import (
    UNCHANGED,
    Allocated,
    AttackNeed,
    CannotTry,
    ExperimentStage,
    VariableChanges,
    allocate_in_pieces,
)
from partage.lab.tenant import OK
from partage.model.driver_limit import STEP_BYTES, LimitAt
from partage.model.ids import ContainerId
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.units import MIB, format_bytes

_is_sliced = partial(shared_by, Strategy.TIME_SLICING)


def _unlimited(share: PromisedShare) -> bool:
    return _is_sliced(share) and not share.guarded_by_framework and not share.offering.limited


async def _filled(
    stage: ExperimentStage, mode: TenantMode | None, changes: VariableChanges = UNCHANGED
) -> Allocated:
    """What a tenant gets that wants more than its share."""
    share = stage.share
    most = above_limit(share.bytes, share.device_bytes)
    return await allocate_in_pieces(await stage.tenant(changes, mode=mode), share.bytes, most)


@attack(
    "slicing-over-share", "time-slicing", Guarantee.NONE, AttackNeed.GPU,
    promised="Nothing limits a tenant's memory.",
    tried="A tenant allocates in pieces up to five quarters of its share.",
    on=_unlimited,
)  # fmt: skip
async def _unheld(stage: ExperimentStage) -> AttackOutcome:
    return _without_limit(stage, await _filled(stage, None))


@attack(
    "guard-over-share", "time-slicing, guard", Guarantee.ADVISORY, AttackNeed.GPU, AttackNeed.TORCH,
    promised="A PyTorch program that wants more than its share gets out of memory.",
    tried="A tenant with the guard allocates in pieces up to five quarters of its share, through PyTorch.",
    on=lambda share: share.guarded_by_framework,
)  # fmt: skip
async def _capped(stage: ExperimentStage) -> AttackOutcome:
    got = await _filled(stage, TenantMode.WITH_GUARD)
    return allocation_outcome(got, stage.share.bytes, "the share")


@attack(
    "guard-off", "time-slicing, guard", Guarantee.ADVISORY, AttackNeed.GPU, AttackNeed.TORCH,
    promised="A tenant can drop the guard, and then nothing limits its memory.",
    tried="The same with PARTAGE_GUARD=off.",
    on=lambda share: share.guarded_by_framework,
)  # fmt: skip
async def _off(stage: ExperimentStage) -> AttackOutcome:
    got = await _filled(stage, TenantMode.WITH_GUARD, {"PARTAGE_GUARD": "off"})
    return _without_limit(stage, got)


def _without_limit(stage: ExperimentStage, got: Allocated) -> AttackOutcome:
    share = stage.share
    if was_limited(got, share.bytes):
        return kept(f"{allocated_words(got)}: limited, although nothing is promised")
    return limit_avoided(share, f"{allocated_words(got)}, with a share of {format_bytes(share.bytes)}")


_NOBODY = 65534
_FORKED = ("/bin/sh", "-c", '"$@"; exit $?', "sh")
"""The tenant is a child of the process that the cgroup was given."""
_CHILD = 'mkdir -p "$0" && echo $$ >>"$0/cgroup.procs" && exec "$@"'
_LEFT = (
    f"if setpriv --reuid={_NOBODY} --regid={_NOBODY} --clear-groups /bin/sh -c "
    """'echo $$ >>"$0/cgroup.procs"' "$0" 2>/dev/null; then echo $$ >>"$0/cgroup.procs"; fi; exec "$@\""""
)
"""Where that user can go, the tenant goes, too."""

_HELD = "What is in the cgroup gets out of memory beyond its limit, "


def _limited(share: PromisedShare) -> bool:
    return share.offering.limited


async def _beyond(
    stage: ExperimentStage, changes: VariableChanges = UNCHANGED, through: tuple[str, ...] = ()
) -> AttackOutcome:
    """The outcome for a tenant that takes pieces up to five quarters of its share."""
    share = stage.share
    most = above_limit(share.bytes, share.device_bytes)
    got = await allocate_in_pieces(await stage.tenant(changes, through=through), share.bytes, most)
    return allocation_outcome(got, share.bytes, "the limit")


@attack(
    "limit-at-once", "time-slicing, memory: hard", Guarantee.HARD,
    promised=f"{_HELD}also at once, and its neighbour works on.",
    tried="A tenant allocates five quarters of its share in one piece, beside one that works.",
    on=_limited,
)  # fmt: skip
async def _at_once(stage: ExperimentStage) -> AttackOutcome:
    share, neighbour = stage.share, await stage.tenant()
    require_working(await neighbour.attempt("launch"))
    most = above_limit(share.bytes, share.device_bytes)
    answer = await (await stage.tenant()).allocate(most)
    if (after := await neighbour.attempt("launch")) != OK:
        return broken(f"the neighbour failed: {after}")
    return allocation_outcome(Allocated(most if answer == OK else 0, answer), share.bytes, "the limit")


@attack(
    "limit-in-steps", "time-slicing, memory: hard", Guarantee.HARD,
    promised=f"{_HELD}also in the driver's own steps.",
    tried="A tenant allocates 256 MiB again and again, up to five quarters of its share.",
    on=_limited,
)  # fmt: skip
async def _in_steps(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    most = above_limit(share.bytes, share.device_bytes)
    got = await allocate_in_pieces(await stage.tenant(), share.bytes, most, piece=STEP_BYTES)
    return allocation_outcome(got, share.bytes, "the limit")


@attack(
    "limit-second-process", "time-slicing, memory: hard", Guarantee.HARD,
    promised=f"{_HELD}all its processes together.",
    tried="A tenant allocates half of its share, and a second process in pieces up to five quarters.",
    on=_limited,
)  # fmt: skip
async def _second(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    most = above_limit(share.bytes, share.device_bytes)
    half = share.bytes // 2 // MIB * MIB
    first = await allocate_in_pieces(await stage.tenant(), share.bytes, half)
    second = await allocate_in_pieces(await stage.tenant(), share.bytes, most - first.bytes)
    together = Allocated(first.bytes + second.bytes, second.answer)
    return allocation_outcome(together, share.bytes, "the limit")


@attack(
    "limit-fork", "time-slicing, memory: hard", Guarantee.HARD,
    promised=f"{_HELD}also a process that another one in it has started.",
    tried="The same by a child of the process that the cgroup was given.",
    on=_limited,
)  # fmt: skip
async def _fork(stage: ExperimentStage) -> AttackOutcome:
    return await _beyond(stage, through=_FORKED)


@attack(
    "limit-child-cgroup", "time-slicing, memory: hard", Guarantee.HARD,
    promised=f"{_HELD}also in a cgroup below it that has no limit.",
    tried="A tenant makes a cgroup in its own and goes there.",
    on=_limited,
)  # fmt: skip
async def _child(stage: ExperimentStage) -> AttackOutcome:
    return await _beyond(stage, through=("/bin/sh", "-c", _CHILD, str(stage.cgroup / INSIDE)))


@attack(
    "limit-leave-cgroup", "time-slicing, memory: hard", Guarantee.HARD, AttackNeed.ROOT,
    promised="Whoever is not root on the node cannot leave the cgroup.",
    tried=f"User {_NOBODY} writes itself into the cgroup above; a tenant goes where it got, and allocates.",
    on=_limited,
)  # fmt: skip
async def _leave(stage: ExperimentStage) -> AttackOutcome:
    return await _beyond(stage, through=("/bin/sh", "-c", _LEFT, str(stage.cgroup.parent)))


@attack(
    "limit-own-variables", "time-slicing, memory: hard", Guarantee.HARD,
    promised="What a tenant writes into its own environment changes no limit.",
    tried=f"A tenant sets NVIDIA_GPU_MEMORY_LIMIT and _REQUEST, {MEMORY_VARIABLE} and "
    "NVIDIA_VISIBLE_DEVICES=all, then allocates.",
    on=_limited,
)  # fmt: skip
async def _variables(stage: ExperimentStage) -> AttackOutcome:
    all_mib = stage.share.device_bytes // MIB
    return await _beyond(
        stage,
        {
            "NVIDIA_GPU_MEMORY_LIMIT": str(all_mib),
            "NVIDIA_GPU_MEMORY_REQUEST": str(all_mib),
            "NVIDIA_VISIBLE_DEVICES": "all",
            MEMORY_VARIABLE: f"0={all_mib}M",
        },
    )


@attack(
    "limit-managed", "time-slicing, memory: hard", Guarantee.NONE,
    promised="Managed memory is not counted: the watchdog has to look for it.",
    tried="A tenant takes five quarters of its share as managed memory, and writes to it.",
    on=_limited,
)  # fmt: skip
async def _managed(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    most = above_limit(share.bytes, share.device_bytes)
    answer = await (await stage.tenant()).attempt(f"managed {most}")
    words = f"managed memory of {format_bytes(most)}, with a limit of {format_bytes(share.bytes)}"
    if answer == OK:
        return kept(f"it got {words}: not counted, as is said")
    if "OUT_OF_MEMORY" in answer:
        return kept(f"{allocated_words(Allocated(0, answer))}: limited, although nothing is promised")
    raise CannotTry(f"the tenant cannot use managed memory: {answer}")


@attack(
    "limit-counted", "time-slicing, memory: hard", Guarantee.HARD,
    promised="What is counted for the cgroup is what its processes have: use is told by it.",
    tried="Two tenants allocate a quarter of the share each; what is counted is compared with the sum over "
    "their processes, and has to be the same up to one step for each.",
    on=_limited,
)  # fmt: skip
async def _counted(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    quarter = share.bytes // 4 // MIB * MIB
    require_working(*[await (await stage.tenant()).allocate(quarter) for _ in range(2)])
    found = await stage.engine.counted(LimitAt(ContainerId(stage.cgroup.name), share.offering.gpu))
    words = (
        f"counted are {format_bytes(found.counted_bytes)}, and {found.processes} processes have "
        f"{format_bytes(found.summed_bytes)}, of which {format_bytes(2 * quarter)} were allocated"
    )
    near = abs(found.counted_bytes - found.summed_bytes) <= STEP_BYTES * found.processes
    return kept(words) if near and found.counted_bytes >= 2 * quarter else broken(words)


OF_LIMITS = (_at_once, _in_steps, _second, _fork, _child, _leave, _variables, _managed, _counted)
ATTACKS = (_unheld, _capped, _off, *OF_LIMITS)

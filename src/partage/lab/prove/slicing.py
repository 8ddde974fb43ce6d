"""Time-slicing: nothing limits a tenant but the guard, which it can drop; with the driver's memory limits its
cgroup holds it, whatever it does itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from partage.lab.place import MEMORY_VARIABLE, TenantMode
from partage.lab.prove.attack import (
    Act,
    Attack,
    above_limit,
    allocate_beyond,
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


@attack(
    "slicing-over-share", "time-slicing", Guarantee.NONE, AttackNeed.GPU,
    promised="Nothing limits a tenant's memory.",
    tried="A tenant allocates in pieces up to five quarters of its share.",
    on=_unlimited,
)  # fmt: skip
async def _unheld(stage: ExperimentStage) -> AttackOutcome:
    return _without_limit(stage, await allocate_beyond(stage, stage.share.bytes))


@attack(
    "guard-over-share", "time-slicing, guard", Guarantee.ADVISORY, AttackNeed.GPU, AttackNeed.TORCH,
    promised="A PyTorch program that wants more than its share gets out of memory.",
    tried="A tenant with the guard allocates in pieces up to five quarters of its share, through PyTorch.",
    on=lambda share: share.guarded_by_framework,
)  # fmt: skip
async def _capped(stage: ExperimentStage) -> AttackOutcome:
    got = await allocate_beyond(stage, stage.share.bytes, mode=TenantMode.WITH_GUARD)
    return allocation_outcome(got, stage.share.bytes, "the share")


@attack(
    "guard-off", "time-slicing, guard", Guarantee.ADVISORY, AttackNeed.GPU, AttackNeed.TORCH,
    promised="A tenant can drop the guard, and then nothing limits its memory.",
    tried="The same with PARTAGE_GUARD=off.",
    on=lambda share: share.guarded_by_framework,
)  # fmt: skip
async def _off(stage: ExperimentStage) -> AttackOutcome:
    off = {"PARTAGE_GUARD": "off"}
    got = await allocate_beyond(stage, stage.share.bytes, off, mode=TenantMode.WITH_GUARD)
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


def _on_limit(
    name: str, *needs: AttackNeed, promised: str, tried: str, guarantee: Guarantee = Guarantee.HARD
) -> Callable[[Act], Attack]:
    """An attack on a share that the driver limits."""
    return attack(
        name, "time-slicing, memory: hard", guarantee, *needs,
        promised=promised, tried=tried, on=lambda share: share.offering.limited,
    )  # fmt: skip


async def _beyond(
    stage: ExperimentStage,
    changes: VariableChanges = UNCHANGED,
    through: tuple[str, ...] = (),
    piece: int | None = None,
) -> AttackOutcome:
    """The outcome for a tenant that takes pieces up to five quarters of its share."""
    limit = stage.share.bytes
    got = await allocate_beyond(stage, limit, changes, through=through, piece=piece)
    return allocation_outcome(got, limit, "the limit")


@_on_limit(
    "limit-at-once",
    promised=f"{_HELD}also at once, and its neighbour works on.",
    tried="A tenant allocates five quarters of its share in one piece, beside one that works.",
)  # fmt: skip
async def _at_once(stage: ExperimentStage) -> AttackOutcome:
    share, neighbour = stage.share, await stage.tenant()
    require_working(await neighbour.attempt("launch"))
    most = above_limit(share.bytes, share.device_bytes)
    answer = await (await stage.tenant()).allocate(most)
    if (after := await neighbour.attempt("launch")) != OK:
        return broken(f"the neighbour failed: {after}")
    return allocation_outcome(Allocated(most if answer == OK else 0, answer), share.bytes, "the limit")


@_on_limit(
    "limit-in-steps",
    promised=f"{_HELD}also in the driver's own steps.",
    tried="A tenant allocates 256 MiB again and again, up to five quarters of its share.",
)  # fmt: skip
async def _in_steps(stage: ExperimentStage) -> AttackOutcome:
    return await _beyond(stage, piece=STEP_BYTES)


@_on_limit(
    "limit-second-process",
    promised=f"{_HELD}all its processes together.",
    tried="A tenant allocates half of its share, and a second process in pieces up to five quarters.",
)  # fmt: skip
async def _second(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    most = above_limit(share.bytes, share.device_bytes)
    half = share.bytes // 2 // MIB * MIB
    first = await allocate_in_pieces(await stage.tenant(), share.bytes, half)
    second = await allocate_in_pieces(await stage.tenant(), share.bytes, most - first.bytes)
    together = Allocated(first.bytes + second.bytes, second.answer)
    return allocation_outcome(together, share.bytes, "the limit")


@_on_limit(
    "limit-fork",
    promised=f"{_HELD}also a process that another one in it has started.",
    tried="The same by a child of the process that the cgroup was given.",
)  # fmt: skip
async def _fork(stage: ExperimentStage) -> AttackOutcome:
    return await _beyond(stage, through=_FORKED)


@_on_limit(
    "limit-child-cgroup",
    promised=f"{_HELD}also in a cgroup below it that has no limit.",
    tried="A tenant makes a cgroup in its own and goes there.",
)  # fmt: skip
async def _child(stage: ExperimentStage) -> AttackOutcome:
    return await _beyond(stage, through=("/bin/sh", "-c", _CHILD, str(stage.cgroup / INSIDE)))


@_on_limit(
    "limit-leave-cgroup", AttackNeed.ROOT,
    promised="Whoever is not root on the node cannot leave the cgroup.",
    tried=f"User {_NOBODY} writes itself into the cgroup above; a tenant goes where it got, and allocates.",
)  # fmt: skip
async def _leave(stage: ExperimentStage) -> AttackOutcome:
    return await _beyond(stage, through=("/bin/sh", "-c", _LEFT, str(stage.cgroup.parent)))


@_on_limit(
    "limit-own-variables",
    promised="What a tenant writes into its own environment changes no limit.",
    tried=f"A tenant sets NVIDIA_GPU_MEMORY_LIMIT and _REQUEST, {MEMORY_VARIABLE} and "
    "NVIDIA_VISIBLE_DEVICES=all, then allocates.",
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


@_on_limit(
    "limit-managed", guarantee=Guarantee.NONE,
    promised="Managed memory is not counted: the watchdog has to look for it.",
    tried="A tenant takes five quarters of its share as managed memory, and writes to it.",
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


@_on_limit(
    "limit-counted",
    promised="What is counted for the cgroup is what its processes have: use is told by it.",
    tried="Two tenants allocate a quarter of the share each; what is counted is compared with the sum over "
    "their processes, and has to be the same up to one step for each.",
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

"""Why a MIG layout cannot be made on a GPU: what is in use and by whom, as values and as a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec.structs import replace

from partage.model.geometry import Placement
from partage.model.gpu import Gpu
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import GpuUuid, MigUuid
from partage.model.layout import MisfitKind
from partage.model.policy import DesiredMig
from partage.model.step import SetMigMode
from partage.plan.reconcile.instances import LiveInstance
from partage.plan.reconcile.placement_search import PlacedLayout, PlannedInstance
from partage.text import counted
from partage.values import Frozen


class BlockKind(StrEnum):
    """Why there are no steps, or none that may begin. Only HELD and OTHER_PLUGIN can end by themselves, and
    SHARED if it comes from HELD.
    """

    NO_MIG = "no-mig"
    NOT_PERMITTED = "not-permitted"
    UNKNOWN_GEOMETRY = "unknown-geometry"
    DOES_NOT_FIT = "does-not-fit"
    HELD = "held"
    SHARED = "shared-reset"
    OTHER_PLUGIN = "other-plugin"


class Blocker(Frozen):
    """Something in use that the steps would take away.

    gpu: its UUID. devices: UUIDs of MIG devices; empty where it is the GPU as a whole. profile, placement:
    of the GPU instance. users: pods and processes that must release it. why: half a sentence, ``the wanted
    layout has no 3g.40gb``.
    """

    gpu: GpuUuid
    users: tuple[GpuUse, ...]
    why: str
    devices: tuple[MigUuid, ...] = ()
    profile: str | None = None
    placement: Placement | None = None


class Blocked(Frozen):
    """No steps for this GPU. reason: one sentence for the operator. misfit: for DOES_NOT_FIT.

    kept: UUIDs of MIG devices that stay when those in the way are gone; for HELD.
    """

    gpu: GpuUuid
    kind: BlockKind
    reason: str
    blockers: tuple[Blocker, ...] = ()
    misfit: MisfitKind | None = None
    kept: tuple[MigUuid, ...] = ()


def blocked_by_users(gpu: Gpu, what: str, blockers: Sequence[Blocker]) -> Blocked:
    """The result for a GPU in use. what: what cannot be done, ``cannot be reset``."""
    return Blocked(
        gpu.uuid, BlockKind.HELD, f"GPU {gpu.index} {what}: {_sentences(blockers)}", tuple(blockers)
    )


def reset_blockers(gpus: Sequence[Gpu], uses: Iterable[GpuUse]) -> tuple[Blocker, ...]:
    """All users that must end before these GPUs can be reset together, monitors included, except
    nvidia-persistenced: the reset makes it let go.
    """
    by_gpu: dict[GpuUuid, list[GpuUse]] = {gpu.uuid: [] for gpu in gpus}
    for use in (use for use in uses if not use.gives_way):
        by_gpu.get(use.gpu, []).append(use)
    per_gpu = Counter((use.kind, use.name, use.pid, use.gpu) for some in by_gpu.values() for use in some)
    gpus_used = Counter((kind, name, pid) for kind, name, pid, _ in per_gpu)
    blockers = []
    for gpu in gpus:
        some = tuple(by_gpu[gpu.uuid])
        if some:
            most = max(gpus_used[use.kind, use.name, use.pid] for use in some)
            span = f"; one user spans {most} of the GPUs to be reset" if most > 1 else ""
            blockers.append(Blocker(gpu.uuid, some, f"GPU {gpu.index} has to be idle{span}"))
    return tuple(blockers)


def check_users(
    gpu: Gpu,
    desired: DesiredMig,
    mode: SetMigMode | None,
    live: Sequence[LiveInstance],
    uses: Iterable[GpuUse],
    *,
    all_go: bool,
) -> Blocked | None:
    """Users of the GPU, or of instances on it, if the change would take them away; None: no one is."""
    assert gpu.mig_mode is not None
    if all_go and any(instance.busy for instance in live):
        why = "all instances have to go" if desired.enabled else "MIG mode is to be off"
        blockers = [_blocker(gpu, instance, why) for instance in live if instance.busy]
        return blocked_by_users(gpu, "cannot be changed", blockers)
    turned = mode is not None and gpu.mig_mode.current != desired.enabled
    first = gpu.mig_mode.current and not live and (desired.items or desired.named)
    tenants = tuple(
        use for use in uses if use.gpu == gpu.uuid and use.whole and use.kind is not UseKind.MONITOR
    )
    if tenants and (turned or first):
        blocker = Blocker(gpu.uuid, tenants, "the GPU as a whole has to be idle")
        return blocked_by_users(gpu, "cannot be changed", [blocker])
    return None


def blocked_by_instances(gpu: Gpu, layout: PlacedLayout, live: Sequence[LiveInstance]) -> Blocked:
    """Who uses instances that have no place in the best placement, which loses as few users as possible."""
    instances = {instance.live.gi_id: instance for instance in layout.instances if instance.live}
    blockers = []
    for live_instance in live:
        instance = instances.get(live_instance.gi_id)
        if instance is None and live_instance.busy:
            blockers.append(_blocker(gpu, live_instance, _why(live_instance, layout.instances, live)))
        elif instance is not None and (lost := [compute for compute in instance.removed if compute.users]):
            part = replace(live_instance, computes=tuple(lost), users=())
            blockers.append(_blocker(gpu, part, "the wanted layout has no such MIG device in its place"))
    devices = (device for instance in layout.instances for device in instance.devices)
    names = counted(devices) or "no MIG device"
    kept = tuple(compute.uuid for instance in layout.instances for compute in instance.kept)
    return replace(blocked_by_users(gpu, f"cannot have {names}", blockers), kept=kept)


def _why(lost: LiveInstance, instances: Sequence[PlannedInstance], live: Sequence[LiveInstance]) -> str:
    wanted = [instance.wanted for instance in instances if instance.wanted.spec.profile == lost.profile]
    if not wanted:
        return f"the wanted layout has no {lost.profile}"
    if sum(instance.profile == lost.profile and instance.busy > 0 for instance in live) > len(wanted):
        return f"the wanted layout has only {len(wanted)} x {lost.profile}"
    if all(instance.start is not None for instance in wanted):
        return f"the wanted layout has {lost.profile} at other memory slices"
    return "the rest of the wanted layout cannot be placed around it"


def _blocker(gpu: Gpu, instance: LiveInstance, why: str) -> Blocker:
    devices = tuple(compute.uuid for compute in instance.computes if compute.users)
    return Blocker(gpu.uuid, instance.all_users, why, devices, str(instance.profile), instance.placement)


def _sentences(blockers: Iterable[Blocker]) -> str:
    return "; ".join(
        f"{_thing(blocker)} is used by {', '.join(map(str, blocker.users))}, and {blocker.why}"
        for blocker in blockers
    )


def _thing(blocker: Blocker) -> str:
    return f"{blocker.profile} at {blocker.placement}" if blocker.profile else "it"

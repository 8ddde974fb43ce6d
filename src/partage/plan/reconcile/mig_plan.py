"""The steps from the live MIG layouts of a node's GPUs to the desired ones: as few as possible, no user
disturbed.

Order on a GPU: destroy instances that are in the way and not in use, change the MIG mode, create the rest,
each compute instance right after its GPU instance. Planning again after any step gives the remaining steps.

Each GPU goes by itself, except GPUs that share a reset. Only GPUs with a pending change of MIG mode are
reset, and those that the hardware resets with them. All of these must be idle. They lose their instances, so
each needs a desired layout for afterwards; a GPU without one is included only if it has no instances.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from partage.model.geometry import Geometry, MigProfile, ProfileSpec
from partage.model.gpu import Gpu, Inventory, MigDevice, MigMode
from partage.model.gpu_use import GpuUse
from partage.model.ids import GpuUuid, MigUuid
from partage.model.layout import DoesNotFit, LayoutItem, matches, resolve_layout
from partage.model.policy import DesiredMig
from partage.model.step import (
    CreateCompute,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    Reset,
    SetMigMode,
    Step,
    Transaction,
    Verify,
    gpus_of,
)
from partage.plan.reconcile.blocked import (
    Blocked,
    Blocker,
    BlockKind,
    blocked_by_instances,
    blocked_by_users,
    check_users,
    reset_blockers,
)
from partage.plan.reconcile.instances import LiveInstance, WantedInstance, live_instances
from partage.plan.reconcile.placement_search import PlacedLayout, PlannedInstance, best_placement
from partage.plan.reconcile.resets import needs_reset, reset_sets
from partage.values import Frozen


class GpuMigPlan(Frozen):
    """The MIG steps of one GPU.

    steps: empty if the layout matches. kept, gone: UUIDs of MIG devices that stay, and that do not.
    layout: the resulting MIG devices, ``3g.40gb@4``, by first memory slice.
    """

    gpu: GpuUuid
    steps: tuple[Step, ...]
    kept: tuple[MigUuid, ...] = ()
    gone: tuple[MigUuid, ...] = ()
    layout: tuple[str, ...] = ()


class GpuMigSteps(Frozen):
    """The steps of one GPU by kind, so that several GPUs can share a reset. reset: it needs one."""

    gpu: Gpu
    instances: tuple[PlannedInstance, ...]
    destroys: tuple[Step, ...] = ()
    mode: SetMigMode | None = None
    reset: bool = False
    creates: tuple[Step, ...] = ()
    verify: Verify | None = None

    @property
    def idle(self) -> bool:
        """There is nothing to do."""
        return not (self.destroys or self.mode or self.reset or self.creates)

    def planned(self, steps: Sequence[Step]) -> GpuMigPlan:
        """The plan with these steps."""
        if self.idle:
            layout = tuple(map(str, live_layout(self.gpu).items))
            return GpuMigPlan(
                self.gpu.uuid, (), tuple(device.uuid for device in self.gpu.mig_devices), (), layout
            )
        kept = [compute.uuid for instance in self.instances for compute in instance.kept]
        gone = tuple(device.uuid for device in self.gpu.mig_devices if device.uuid not in kept)
        return GpuMigPlan(self.gpu.uuid, tuple(steps), tuple(kept), gone, _listing(self.instances))


def ordered_steps(
    works: Sequence[GpuMigSteps], reset: Sequence[GpuUuid], reboot: bool | None
) -> tuple[Step, ...]:
    """The steps of GPUs that change together. reset: UUIDs of all GPUs that share the reset, if any."""
    steps: list[Step] = [step for work in works for step in work.destroys]
    steps += [work.mode for work in works if work.mode]
    pending = tuple(work.gpu.uuid for work in works if work.reset)
    if pending:
        steps.append(Reset(tuple(reset), pending, reboot))
    steps += [step for work in works for step in work.creates]
    return (*steps, *(work.verify for work in works if work.verify and not work.idle))


def live_layout(gpu: Gpu) -> DesiredMig:
    """The live layout as a desired one, with fixed starts where they are known, for undo. Empty GPU instances
    are left out.
    """
    devices = sorted(gpu.mig_devices, key=_order)
    items = tuple(
        LayoutItem(
            MigProfile.parse(device.profile), None if device.placement is None else device.placement.start
        )
        for device in devices
    )
    return DesiredMig(items, enabled=gpu.mig_enabled)


def _order(device: MigDevice) -> tuple[int, int]:
    return device.gi_id if device.placement is None else device.placement.start, device.ci_id


# --- one GPU, by phase ---------------------------------------------------------------------------


def gpu_mig_steps(
    gpu: Gpu,
    desired: DesiredMig,
    geometry: Geometry | None,
    uses: Sequence[GpuUse],
    *,
    renew: Collection[int] = (),
    reset_with_others: bool = False,
) -> GpuMigSteps | Blocked:
    """The steps of one GPU. Users of other GPUs that share its reset are not checked.

    geometry: None if not known. uses: of this GPU or of all. renew: ids of GPU instances that are destroyed
    and made again if not in use: the driver could not place a compute instance in them.
    reset_with_others: the GPU is reset because another GPU needs it, so all its instances are lost.
    """
    if gpu.mig_mode is None:
        if not desired.enabled:
            return GpuMigSteps(gpu, ())
        return Blocked(gpu.uuid, BlockKind.NO_MIG, f"GPU {gpu.index}: {gpu.product} has no MIG")
    if gpu.mig_unplaced:
        return _unplaced(gpu, desired, geometry, reset_with_others=reset_with_others)
    if desired.spared:
        named = ", ".join(map(str, desired.spared))
        reason = f"its GPU instance {named} is empty, and was not made for a claim"
        kept = tuple(device.uuid for device in gpu.mig_devices)
        return Blocked(gpu.uuid, BlockKind.HELD, f"GPU {gpu.index} cannot be changed: {reason}", kept=kept)
    mode, reset = _mode(gpu, desired.enabled)
    all_go = reset_with_others or reset or not desired.enabled
    live = live_instances(gpu, uses, renew) if gpu.mig_mode.current else ()
    if refusal := check_users(gpu, desired, mode, live, uses, all_go=all_go):
        return refusal
    try:
        layout = _placement(gpu, desired, geometry, () if all_go else live)
    except DoesNotFit as misfit:
        return _misfit(gpu, misfit)
    if layout is None:
        reason = f"GPU {gpu.index}: not plannable: no MIG placements are known for {gpu.product}"
        return Blocked(gpu.uuid, BlockKind.UNKNOWN_GEOMETRY, reason)
    if layout.lost:
        return blocked_by_instances(gpu, layout, live)
    if crowded := [
        instance
        for instance in layout.instances
        if instance.live and instance.live.renew and instance.missing
    ]:
        return _crowded(gpu, crowded)
    creates = tuple(step for instance in layout.instances for step in _creates(gpu, instance))
    verify = Verify(gpu.uuid, desired.enabled, _listing(layout.instances))
    return GpuMigSteps(
        gpu, layout.instances, _destroys(gpu, layout.instances, live), mode, reset, creates, verify
    )


def _misfit(gpu: Gpu, misfit: DoesNotFit) -> Blocked:
    return Blocked(gpu.uuid, BlockKind.DOES_NOT_FIT, f"GPU {gpu.index}: {misfit}", misfit=misfit.kind)


def _unplaced(
    gpu: Gpu, desired: DesiredMig, geometry: Geometry | None, *, reset_with_others: bool
) -> GpuMigSteps | Blocked:
    """Nothing to do if the profiles are those that are wanted; only root can plan anything else."""
    modes_are_right = gpu.mig_mode == MigMode(desired.enabled, desired.enabled) and not reset_with_others
    try:
        wanted = resolve_layout(geometry, desired.items, desired.named).items if geometry else desired.items
    except DoesNotFit as misfit:
        return _misfit(gpu, misfit)
    if modes_are_right and matches(gpu.mig_devices, wanted):
        return GpuMigSteps(gpu, ())
    reason = f"GPU {gpu.index}: only root may read where its MIG devices are, and change them: run it as root"
    return Blocked(gpu.uuid, BlockKind.NOT_PERMITTED, reason)


def _mode(gpu: Gpu, enabled: bool) -> tuple[SetMigMode | None, bool]:
    """The change of MIG mode, and whether a reset follows.

    Cancelling a pending change needs no reset. Where the mode changes without one, it is pending because the
    GPU was in use: it is set once more.
    """
    assert gpu.mig_mode is not None
    resets = gpu.mig_mode.current != enabled and needs_reset(gpu)
    is_set = gpu.mig_mode.pending == enabled and (gpu.mig_mode.current == enabled or resets)
    return None if is_set else SetMigMode(gpu.uuid, enabled), resets


def _placement(
    gpu: Gpu, desired: DesiredMig, geometry: Geometry | None, live: Sequence[LiveInstance]
) -> PlacedLayout | None:
    """The place of every instance; None if it is not known what the GPU allows. Raises DoesNotFit."""
    if not desired.enabled:
        return PlacedLayout(())
    if geometry is None and desired.named is not None:
        return None
    items = resolve_layout(geometry, desired.items, desired.named).items if geometry else desired.items
    as_wanted = live and not any(instance.renew for instance in live) and matches(gpu.mig_devices, items)
    if as_wanted or not items:
        stay = [instance for instance in live if instance.computes and items]
        return PlacedLayout(
            tuple(map(_as_it_is, stay)), sum(instance.busy for instance in live if instance not in stay)
        )
    return best_placement(geometry, items, live) if geometry and geometry.placed else None


def _crowded(gpu: Gpu, instances: Sequence[PlannedInstance]) -> Blocked:
    """GPU instances that would have to be made again, but a part of them is in use."""
    blockers = []
    for live in (instance.live for instance in instances if instance.live):
        devices = tuple(compute.uuid for compute in live.computes if compute.users)
        place = (str(live.profile), live.placement)
        blockers.append(Blocker(gpu.uuid, live.all_users, "the driver has no room in it", devices, *place))
    missing = ", ".join(str(profile) for instance in instances for profile in instance.missing)
    return blocked_by_users(gpu, f"cannot have {missing} as well", blockers)


def _as_it_is(live: LiveInstance) -> PlannedInstance:
    """The plan entry of a live instance that stays, also if the catalogue does not know its profile."""
    start, size = live.placement.start, live.placement.size
    spec = ProfileSpec(live.profile, live.profile.gpu_slices, size, (start,), (start,), 1)
    computes = sorted((compute.profile.compute_slices for compute in live.computes), reverse=True)
    return PlannedInstance(WantedInstance(spec, tuple(computes)), live.placement, live)


def _destroys(
    gpu: Gpu, instances: Sequence[PlannedInstance], live: Sequence[LiveInstance]
) -> tuple[Step, ...]:
    reused = {instance.live.gi_id: instance for instance in instances if instance.live}
    steps: list[Step] = []
    for live_instance in live:
        instance = reused.get(live_instance.gi_id)
        place = (str(live_instance.profile), live_instance.placement)
        for compute in sorted(
            instance.removed if instance else live_instance.computes, key=lambda compute: -compute.ci_id
        ):
            name, ci_id, uuid = str(compute.profile), compute.ci_id, compute.uuid
            steps.append(DestroyCompute(gpu.uuid, *place, name, live_instance.gi_id, ci_id, uuid))
        if instance is None:
            steps.append(DestroyInstance(gpu.uuid, *place, live_instance.gi_id))
    return tuple(steps)


def _creates(gpu: Gpu, instance: PlannedInstance) -> tuple[Step, ...]:
    place = (str(instance.wanted.spec.profile), instance.placement)
    new = () if instance.live else (CreateInstance(gpu.uuid, *place),)
    return (*new, *(CreateCompute(gpu.uuid, *place, str(profile)) for profile in instance.missing))


def _listing(instances: Iterable[PlannedInstance]) -> tuple[str, ...]:
    return tuple(
        str(LayoutItem(device, instance.placement.start))
        for instance in instances
        for device in instance.devices
    )


NOTHING: Mapping[GpuUuid, Collection[int]] = {}


class MigPlan(Frozen):
    """The MIG steps of a node.

    transactions: by lowest GPU index. planned: one entry for each GPU whose layout can be made, without
    steps if it matches. blocked: one entry for each other GPU; other GPUs do not wait for it.
    """

    transactions: tuple[Transaction, ...] = ()
    planned: tuple[GpuMigPlan, ...] = ()
    blocked: tuple[Blocked, ...] = ()

    def of(self, gpu: GpuUuid) -> GpuMigPlan | Blocked | None:
        """The result for one GPU; None: the policy asks for no layout there."""
        found: tuple[GpuMigPlan | Blocked, ...] = (*self.planned, *self.blocked)
        return next((plan for plan in found if plan.gpu == gpu), None)


def plan_mig(
    inventory: Inventory,
    layouts: Mapping[GpuUuid, DesiredMig],
    geometry_of: Callable[[Gpu], Geometry | None],
    uses: Iterable[GpuUse] = (),
    *,
    renew: Mapping[GpuUuid, Collection[int]] = NOTHING,
) -> MigPlan:
    """The steps from the live layouts to ``layouts`` (by GPU UUID); GPUs without one are not changed.

    uses: of all GPUs. renew: as in ``gpu_mig_steps``, by GPU UUID.
    """
    node = _MigNode(inventory, layouts, geometry_of, tuple(uses), renew)
    separate = {gpu.uuid: node.work(gpu) for gpu in inventory if gpu.uuid in layouts}
    sets = reset_sets(inventory)
    outcome = dict(separate)
    together: dict[GpuUuid, tuple[GpuUuid, ...]] = {}
    for group in dict.fromkeys(sets[uuid] for uuid, work in separate.items() if _is_reset(work)):
        reset_with_others = node.reset_with_others(group, separate)
        outcome |= reset_with_others
        if all(isinstance(work, GpuMigSteps) for work in reset_with_others.values()):
            together |= dict.fromkeys(group, group)
    # Without virtualisation only the driver can refuse a reset.
    return _plan(outcome, together, reboot=False if inventory.virtual is False else None)


class _MigNode(Frozen):
    """The arguments of ``plan_mig``."""

    inventory: Inventory
    layouts: Mapping[GpuUuid, DesiredMig]
    geometry_of: Callable[[Gpu], Geometry | None]
    uses: tuple[GpuUse, ...]
    renew: Mapping[GpuUuid, Collection[int]]

    def work(self, gpu: Gpu, *, reset_with_others: bool = False) -> GpuMigSteps | Blocked:
        return gpu_mig_steps(
            gpu,
            self.layouts[gpu.uuid],
            self.geometry_of(gpu),
            self.uses,
            renew=self.renew.get(gpu.uuid, ()),
            reset_with_others=reset_with_others,
        )

    def reset_with_others(
        self, group: Sequence[GpuUuid], separate: Mapping[GpuUuid, GpuMigSteps | Blocked]
    ) -> Mapping[GpuUuid, GpuMigSteps] | Mapping[GpuUuid, Blocked]:
        """The results of GPUs that share a reset: steps for all, or refusals for those that need the
        reset."""
        members = [gpu for gpu in self.inventory if gpu.uuid in group]
        pending = [gpu for gpu in members if _is_reset(separate.get(gpu.uuid))]
        if blockers := reset_blockers(members, self.uses):
            return {gpu.uuid: blocked_by_users(gpu, "cannot be reset", blockers) for gpu in pending}
        works: dict[GpuUuid, GpuMigSteps] = {}
        for gpu in members:
            work = self.work(gpu, reset_with_others=True) if gpu.uuid in self.layouts else None
            if isinstance(work, GpuMigSteps):
                works[gpu.uuid] = work
            elif loss := _loss(gpu, work):
                return {waiting.uuid: _shared(waiting, gpu, loss) for waiting in pending}
        return works


def _plan(
    outcome: Mapping[GpuUuid, GpuMigSteps | Blocked],
    together: Mapping[GpuUuid, tuple[GpuUuid, ...]],
    *,
    reboot: bool | None,
) -> MigPlan:
    refused = tuple(work for work in outcome.values() if isinstance(work, Blocked))
    works = {uuid: work for uuid, work in outcome.items() if isinstance(work, GpuMigSteps)}
    groups = dict.fromkeys(together.get(uuid, (uuid,)) for uuid in works)
    transactions, planned = [], []
    for group in groups:
        members = [works[uuid] for uuid in group if uuid in works]
        steps = ordered_steps(members, group, reboot)
        transactions += [Transaction(group, steps)] if steps else []
        planned += [
            work.planned([step for step in steps if work.gpu.uuid in gpus_of(step)]) for work in members
        ]
    return MigPlan(tuple(transactions), tuple(planned), refused)


def _is_reset(work: GpuMigSteps | Blocked | None) -> bool:
    return isinstance(work, GpuMigSteps) and work.reset


def _loss(gpu: Gpu, refused: Blocked | None) -> str:
    """What a GPU without steps would lose by a reset, as a sentence; empty: nothing."""
    why = "no layout is desired for it afterwards" if refused is None else refused.reason
    if gpu.mig_devices or gpu.empty_instances:
        return f"its instances would be lost, and {why}"
    if gpu.mig_pending:
        return f"its MIG mode would change, and {why}"
    return ""


def _shared(gpu: Gpu, other: Gpu, loss: str) -> Blocked:
    reason = f"GPU {gpu.index} cannot be reset without GPU {other.index}: {loss}"
    return Blocked(gpu.uuid, BlockKind.SHARED, reason)

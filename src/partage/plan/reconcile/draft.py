"""The remaining steps of each GPU of a node, and what it may offer until they are done. Pure.

Steps that stop something come before the change of MIG layout, steps that start something come after it.
A GPU offers a share once all that the share needs exists. If the MPS daemon of a held share fails, the share
stays listed as unhealthy, and the daemon is started again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from partage.model.gpu import Gpu, Inventory
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import DeviceUuid, GpuUuid, MigUuid
from partage.model.share import GpuOffer, NodeOffer
from partage.model.step import PlannedStep, SetComputeMode, StartDaemon, Step, Transaction
from partage.plan.offer.assign import assign
from partage.plan.offer.desired import DesiredState, existing_offer
from partage.plan.offer.select import GeometryOf
from partage.plan.offer.settings import NO_SETTINGS, GpuSettings, settings_of
from partage.plan.reconcile.blocked import Blocked, Blocker, BlockKind, blocked_by_users
from partage.plan.reconcile.gpu_after import gpu_after, steps_after
from partage.plan.reconcile.mig_plan import GpuMigPlan, MigPlan, plan_mig
from partage.plan.reconcile.node_plan import Observed, Phase
from partage.plan.reconcile.settings_steps import (
    OriginalSettings,
    SettingsSteps,
    clients_in_the_way,
    renewal,
    settings_steps,
    slice_steps,
    unusable_devices,
)
from partage.plan.reconcile.transition import GpuServing, terms_of
from partage.values import Frozen


class GpuDraft(Frozen):
    """One GPU.

    offer: what may be offered until its steps are done. reason: why it is not settled, empty if it is.
    stuck: WAITING, BLOCKED or UNKNOWN if its steps cannot begin, else None. transaction: the next steps;
    at_once: they can begin while shares are held. later: steps after these. blocked: what is in the way.
    """

    offer: GpuOffer
    reason: str = ""
    stuck: Phase | None = None
    transaction: Transaction | None = None
    at_once: bool = False
    later: tuple[PlannedStep, ...] = ()
    blocked: Blocked | None = None


class SettingsDrafter:
    """Drafts the settings of the GPUs of one node: daemons, compute modes, time slices.

    unusable: devices whose shares cannot be used now, and why; filled by ``steps``.
    """

    def __init__(
        self,
        observed: Observed,
        served: Mapping[GpuUuid, GpuServing],
        original: Mapping[GpuUuid, OriginalSettings],
        uses: Iterable[GpuUse],
    ) -> None:
        self._observed = observed
        self._served = served
        self._original = original
        self._pods = [use for use in uses if use.kind is UseKind.POD]
        self.unusable: dict[DeviceUuid, str] = {}

    def original(self, gpu: Gpu) -> OriginalSettings:
        """Its settings before Partage changed them."""
        return self._original.get(gpu.uuid, OriginalSettings())

    def serves(self, gpu: Gpu, offer: GpuOffer) -> bool:
        """Whether all shares that can be held on it are what this offer says, also while the free ones are
        withdrawn."""
        served = self._served.get(gpu.uuid)
        return served is not None and not served.leaving and terms_of(served.offer) == terms_of(offer)

    def steps(self, gpu: Gpu, want: GpuSettings) -> tuple[SettingsSteps, str]:
        """The steps without time slices, or why they cannot be planned yet."""
        if self._observed.daemons is None:
            unknown = "it is not known yet which MPS daemons run" if want.daemons else ""
            return SettingsSteps(), unknown
        daemons = self._observed.daemons_of(gpu.uuid)
        unusable, other = unusable_devices(want, daemons), self._served_without_daemon(gpu)
        self.unusable |= {device: why for device, why in unusable.items() if device not in other}
        return settings_steps(gpu, want, daemons, self.original(gpu)), ""

    def _served_without_daemon(self, gpu: Gpu) -> set[DeviceUuid]:
        """Devices whose shares of now need no MPS daemon: it is for those that come after them."""
        now = self._served.get(gpu.uuid, GpuServing(()))
        return {row.device for row in (*now.offer, *now.leaving) if not row.traits.through_daemon}

    def draft(self, gpu: Gpu, want: GpuSettings, offer: GpuOffer) -> GpuDraft:
        """A GPU whose layout matches. offer: what it offers in the end."""
        serves = self.serves(gpu, offer)
        steps, unknown = self.steps(gpu, want)
        if unknown:
            return GpuDraft(offer if serves else (), unknown, Phase.UNKNOWN)
        # Time slices change while containers run, so nothing waits for them.
        slices = slice_steps(gpu.uuid, want, self._observed.slices.get(gpu.uuid), self.original(gpu))
        if steps.settled and gpu.uuid in self._served and self._pods_in_the_way(gpu) is None:
            # Served: only an agent knows all holders.
            steps = renewal(gpu, want, self._observed.daemons_of(gpu.uuid))
        if steps.settled:
            return self._slice_draft(gpu, offer, want, slices)
        todo = (*steps.end, *steps.make)
        transaction = Transaction((gpu.uuid,), todo)
        reason = "; ".join(map(str, todo))
        if not steps.end and serves:
            busy = self.clients_in_the_way(gpu, steps)
            stuck = Phase.WAITING if busy else None
            return GpuDraft(offer, busy or reason, stuck, transaction, at_once=not busy, later=slices)
        ready = () if steps.end else _ready_rows(offer, steps.make)
        blocked = self._pods_in_the_way(gpu) if steps.end or _sets_mode(steps.make) else None
        if blocked is not None:
            return GpuDraft(ready, blocked.reason, Phase.WAITING, transaction, later=slices, blocked=blocked)
        return GpuDraft(ready, reason, None, transaction, later=slices)

    def clients_in_the_way(self, gpu: Gpu, steps: SettingsSteps) -> str:
        """Clients of daemons that run and have to be started again, because their limits are not in force."""
        return clients_in_the_way(steps.make, self._observed.daemons_of(gpu.uuid))

    def _pods_in_the_way(self, gpu: Gpu) -> Blocked | None:
        """Pods that hold shares of a GPU whose daemon or compute mode has to change."""
        users = tuple(use for use in self._pods if use.gpu == gpu.uuid)
        if not users:
            return None
        return blocked_by_users(
            gpu, "cannot be changed", [Blocker(gpu.uuid, users, "no share of it may be held")]
        )

    def _slice_draft(
        self, gpu: Gpu, offer: GpuOffer, want: GpuSettings, slices: tuple[Step, ...]
    ) -> GpuDraft:
        uuid = gpu.uuid
        if slices:
            reason = "; ".join(map(str, slices))
            return GpuDraft(offer, reason, None, Transaction((uuid,), slices), at_once=True)
        if want.interval is not None and uuid in self._observed.fixed_slices:
            reason = f"its time slice cannot be set: {self._observed.fixed_slices[uuid]}"
            return GpuDraft(offer, reason, Phase.BLOCKED)
        if want.interval is not None and uuid not in self._observed.slices:
            return GpuDraft(offer, "its time slice is not known yet", Phase.UNKNOWN)
        return GpuDraft(offer)


def _ready_rows(offer: GpuOffer, make: Sequence[Step]) -> GpuOffer:
    """Offers of devices that need no step: some MIG devices may have their daemon already."""
    if not all(isinstance(step, StartDaemon) for step in make):
        return ()
    lacking = {step.spec.device for step in make if isinstance(step, StartDaemon)}
    return tuple(row for row in offer if row.device not in lacking)


def _sets_mode(steps: Iterable[Step]) -> bool:
    return any(isinstance(step, SetComputeMode) for step in steps)


class NodeDraft(Frozen):
    """The whole node. unusable: devices whose shares cannot be used now, and why."""

    gpus: Mapping[GpuUuid, GpuDraft]
    mig: MigPlan
    unusable: Mapping[DeviceUuid, str]

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        """Each once."""
        found = (draft.transaction for draft in self.gpus.values())
        return tuple(dict.fromkeys(transaction for transaction in found if transaction is not None))

    @property
    def settled(self) -> bool:
        """Nothing has to be done."""
        return not any(draft.reason for draft in self.gpus.values())


def draft_node(
    desired: DesiredState,
    observed: Observed,
    served: Mapping[GpuUuid, GpuServing],
    geometry_of: GeometryOf,
    *,
    uses: Iterable[GpuUse] = (),
    original: Mapping[GpuUuid, OriginalSettings],
    renew: Mapping[GpuUuid, Collection[int]],
) -> NodeDraft:
    """The remaining steps of a node.

    uses: by pods and by processes. renew: GPU instances that are not to be reused, by GPU UUID.
    """
    lost, uses = observed.node.lost, tuple(uses)
    layouts = {uuid: desired_mig for uuid, desired_mig in desired.layouts.items() if uuid not in lost}
    mig = plan_mig(desired.inventory, layouts, geometry_of, uses, renew=renew) if layouts else MigPlan()
    settings = SettingsDrafter(observed, served, original, uses)
    node = _NodeDrafter(desired, observed, mig, settings, geometry_of)
    drafts = {gpu.uuid: node.gpu(gpu) for gpu in desired.inventory}
    return NodeDraft(drafts, mig, {**without_files(desired.inventory), **settings.unusable})


class _NodeDrafter:
    """Drafts the GPUs of one node."""

    def __init__(
        self,
        desired: DesiredState,
        observed: Observed,
        mig: MigPlan,
        settings: SettingsDrafter,
        geometry_of: GeometryOf,
    ) -> None:
        self._desired = desired
        self._observed = observed
        self._mig = mig
        self._settings = settings
        self._geometry_of = geometry_of
        self._offer: NodeOffer = existing_offer(desired.offer)
        self._transactions = {
            gpu: transaction for transaction in mig.transactions for gpu in transaction.gpus
        }

    def gpu(self, gpu: Gpu) -> GpuDraft:
        """One GPU. The MIG layout comes first; settings change only if no layout has to be made."""
        uuid = gpu.uuid
        if uuid in self._observed.node.lost:
            return self._lost(gpu)
        layout = self._mig.of(uuid)
        if uuid in self._transactions:
            return self._relayout(gpu, layout)
        if isinstance(layout, Blocked):
            waits = layout.kind in (BlockKind.HELD, BlockKind.SHARED)
            stuck = Phase.WAITING if waits else Phase.BLOCKED
            return self._blocked_layout(gpu, layout, stuck)
        want = self._desired.settings.get(uuid, NO_SETTINGS)
        return self._settings.draft(gpu, want, self._offer.get(uuid, ()))

    def _lost(self, gpu: Gpu) -> GpuDraft:
        """A GPU that does not answer keeps its offer; its shares are unhealthy."""
        uuid = gpu.uuid
        offer = self._offer.get(uuid, ())
        if uuid in self._desired.pending:
            offer = self._kept(uuid, [device.uuid for device in gpu.mig_devices])
        return GpuDraft(offer, f"it does not answer: {self._observed.node.lost[uuid]}", Phase.BLOCKED)

    def _relayout(self, gpu: Gpu, layout: GpuMigPlan | Blocked | None) -> GpuDraft:
        """Its layout is to be made, or it is reset together with a GPU that needs a reset."""
        uuid, planned = gpu.uuid, self._transactions[gpu.uuid]
        ends = tuple(step for planned_gpu in planned.gpus for step in self._ends(planned_gpu))
        transaction = Transaction(planned.gpus, (*ends, *planned.steps))
        return GpuDraft(
            offer=self._kept(uuid, _kept_by(layout)),
            reason=self._why(uuid, layout),
            transaction=transaction,
            later=self._after_layout(gpu, transaction),
        )

    def _ends(self, uuid: GpuUuid) -> tuple[Step, ...]:
        """Daemons to stop and compute modes to restore before the layout of a GPU changes."""
        gpu = self._desired.inventory.gpu(uuid)
        assert gpu is not None
        steps, _ = self._settings.steps(gpu, self._wanted(uuid, _kept_by(self._mig.of(uuid))))
        return steps.end

    def _why(self, uuid: GpuUuid, layout: GpuMigPlan | Blocked | None) -> str:
        if not isinstance(layout, GpuMigPlan) or not layout.steps:
            return "it is reset together with GPUs that need a reset"
        return self._desired.pending.get(uuid, "instances of an earlier layout have to be destroyed")

    def _after_layout(self, gpu: Gpu, transaction: Transaction) -> tuple[PlannedStep, ...]:
        """What its shares need once the layout is there."""
        return steps_after(
            gpu,
            transaction.steps,
            self._geometry_of(gpu),
            self._wanted_after.get(gpu.uuid, NO_SETTINGS),
            daemons=self._observed.daemons_of(gpu.uuid),
            interval=self._observed.slices.get(gpu.uuid),
            original=self._settings.original(gpu),
        )

    @cached_property
    def _wanted_after(self) -> Mapping[GpuUuid, GpuSettings]:
        """What GPUs have to be set to once all layouts are there."""
        gpus = (self._gpu_after(gpu) for gpu in self._desired.inventory)
        inventory = replace(self._desired.inventory, gpus=tuple(gpus))
        wanted = assign(self._desired.policy, inventory, self._geometry_of, self._desired.on_demand)
        return settings_of(wanted.targets)

    def _gpu_after(self, gpu: Gpu) -> Gpu:
        transaction = self._transactions.get(gpu.uuid)
        steps = transaction.steps if transaction is not None else ()
        return gpu_after(gpu, steps, self._geometry_of(gpu))

    def _kept(self, uuid: GpuUuid, devices: Collection[MigUuid]) -> GpuOffer:
        """The offer of devices that stay, until the layout is made."""
        rows = self._desired.existing.get(uuid) or self._offer.get(uuid, ())
        return tuple(row for row in rows if row.device in devices)

    def _wanted(self, uuid: GpuUuid, kept: Collection[MigUuid]) -> GpuSettings:
        """Settings until the layout is made: daemons of the devices that stay."""
        chosen = self._desired.existing_settings if uuid in self._desired.existing else self._desired.settings
        wanted = chosen.get(uuid, NO_SETTINGS)
        daemons = tuple(spec for spec in wanted.daemons if spec.device in kept)
        return replace(wanted, daemons=daemons, exclusive_process=False, interval=None)

    def _blocked_layout(self, gpu: Gpu, layout: Blocked, stuck: Phase) -> GpuDraft:
        """The layout has to wait. Daemons that held shares need are started all the same."""
        offer = self._kept(gpu.uuid, layout.kept)
        steps, _ = self._settings.steps(gpu, self._wanted(gpu.uuid, layout.kept))
        draft = GpuDraft(offer, layout.reason, stuck, blocked=layout)
        if steps.end or not steps.make or self._settings.clients_in_the_way(gpu, steps):
            return draft
        transaction = Transaction((gpu.uuid,), steps.make)
        return replace(draft, transaction=transaction, at_once=self._settings.serves(gpu, offer))


def without_files(inventory: Inventory) -> dict[DeviceUuid, str]:
    """MIG devices that no container can use yet because a device file is missing, and which."""
    return {
        device.uuid: f"its device file {device.missing_file} does not exist"
        for gpu in inventory
        for device in gpu.mig_devices
        if device.missing_file
    }


def _kept_by(layout: GpuMigPlan | Blocked | None) -> tuple[MigUuid, ...]:
    """MIG devices that stay during the steps; none of a GPU that is only reset with others."""
    return layout.kept if isinstance(layout, GpuMigPlan) and layout.steps else ()

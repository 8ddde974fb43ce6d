"""The remaining steps of each GPU of a node, and what it may offer until they are done. Pure.

Steps that stop something come before the change of MIG layout, steps that start something come after it.
``gpu_draft`` has the GPUs whose layout matches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

from msgspec.structs import replace

from partage.model.gpu import Gpu, Inventory
from partage.model.gpu_use import GpuUse
from partage.model.ids import DeviceUuid, GpuUuid, MigUuid
from partage.model.share import GpuOffer, NodeOffer
from partage.model.step import PlannedStep, Step, Transaction
from partage.plan.offer.assign import assign
from partage.plan.offer.desired import DesiredState, existing_offer
from partage.plan.offer.select import GeometryOf
from partage.plan.offer.settings import NO_SETTINGS, GpuSettings, settings_of
from partage.plan.reconcile.blocked import Blocked, BlockKind
from partage.plan.reconcile.gpu_after import gpu_after, steps_after
from partage.plan.reconcile.gpu_draft import GpuDraft, SettingsDrafter
from partage.plan.reconcile.gpu_mig_plan import GpuMigPlan
from partage.plan.reconcile.mig_plan import MigPlan, plan_mig
from partage.plan.reconcile.node_plan import Observed, Phase
from partage.plan.reconcile.settings_steps import OriginalSettings
from partage.plan.reconcile.transition import GpuServing
from partage.values import Frozen


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

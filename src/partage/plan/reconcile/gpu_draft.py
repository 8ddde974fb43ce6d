"""What remains to be done on one GPU, and the draft of a GPU whose MIG layout matches. Pure.

A GPU offers a share once all that the share needs exists. If the MPS daemon of a held share fails, the share
stays listed as unhealthy, and the daemon is started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from partage.model.gpu import Gpu
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.share import GpuOffer
from partage.model.step import PlannedStep, SetComputeMode, StartDaemon, Step, Transaction
from partage.plan.offer.settings import GpuSettings
from partage.plan.reconcile.blocked import Blocked, Blocker, blocked_by_users
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

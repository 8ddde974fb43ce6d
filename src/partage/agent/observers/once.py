"""A node without an agent, observed once: for ``plan``, ``apply`` and others that ask and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from partage.agent.observers.settings import SettingsObserver, slices_matter
from partage.model.gpu import Inventory, NoDriver
from partage.model.gpu_use import GpuUse
from partage.model.ids import GpuUuid
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.known_node import with_observed
from partage.plan.reconcile.node_plan import FailedAttempt, Snapshot
from partage.plan.reconcile.pod_uses import entry_uses
from partage.plan.reconcile.settings_steps import OriginalSettings, needed_originals
from partage.plan.serve.ledger_entry import LedgerEntry
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.hardware.port import Hardware
    from partage.edges.kubelet.port import PodResources

Resolve = Callable[[Inventory], DesiredState]
"""Resolves the desired state of a node. Raises InputError, Unsatisfiable, DriverUnavailable."""

OtherPluginOn = Callable[[DesiredState], str]
"""Which other device plugin offers GPUs of the node, a sentence; empty for none."""

_NO_ATTEMPTS: Mapping[GpuUuid, FailedAttempt] = {}


class PlanInput(Frozen):
    """The planner's input: the desired state, and the node at one moment."""

    desired: DesiredState
    now: Snapshot

    @property
    def inventory(self) -> Inventory:
        """The observed node."""
        return self.now.observed.node.inventory


async def observe_input(
    hardware: Hardware,
    resolve: Resolve,
    pod_resources: PodResources | None = None,
    original_in: Callable[[str], Mapping[GpuUuid, OriginalSettings]] = lambda _: {},
    *,
    attempts: Mapping[GpuUuid, FailedAttempt] = _NO_ATTEMPTS,
    other_plugin: OtherPluginOn = lambda _: "",
) -> PlanInput:
    """Observe a node on which no agent runs.

    pod_resources: None: pods are not known. original_in: how GPUs were set before Partage changed them, by
    UUID, if that was in the boot with this id. Raises HardwareError, what ``resolve`` raises, and Unreachable
    if the kubelet does not answer.
    """
    inventory = await hardware.observe()
    desired = resolve(inventory)
    original = original_in(inventory.boot_id)
    settings = SettingsObserver(hardware)
    await settings.observe(users=True, slices=slices_matter(desired, original))
    observed = settings.observed(with_observed(None, inventory))
    entries = () if pod_resources is None else await _entries(pod_resources)
    modes = {gpu.uuid: gpu.compute_mode for gpu in inventory}
    needed = needed_originals(original, desired.settings, modes, observed.slices)
    now = Snapshot(
        time.monotonic(),
        observed,
        entries=entries,
        original=needed,
        attempts=attempts,
        other_plugin=other_plugin(desired),
    )
    return PlanInput(desired, now)


async def _entries(pod_resources: PodResources) -> tuple[LedgerEntry, ...]:
    """Held ids of all device plugins: without an agent, another plugin may serve the GPUs."""
    from partage.plan.serve.ledger import Ledger

    ledger = Ledger()
    ledger.observed(await pod_resources.held(), 0.0)
    return ledger.entries()


class NodeAccess(Frozen):
    """A node and its kubelet. pod_resources: None: pods are not known."""

    hardware: Hardware
    pod_resources: PodResources | None = None

    async def observe(self) -> tuple[Inventory, tuple[GpuUse, ...]]:
        """The inventory and its uses. Raises HardwareError, Unreachable."""
        inventory = await self.hardware.observe()
        if isinstance(inventory.driver, NoDriver):
            return inventory, ()
        uses = await self.hardware.uses()
        entries = () if self.pod_resources is None else await _entries(self.pod_resources)
        return inventory, (*uses, *entry_uses(entries, inventory))

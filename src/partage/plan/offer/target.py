"""A device that a policy offers, before its shares are counted."""

from __future__ import annotations

from partage.model.gpu import Gpu, MigDevice
from partage.model.ids import ResourceName
from partage.model.policy import Sharing, WatchAction
from partage.model.strategy import Strategy, Via
from partage.plan.offer.gpu_devices import PlannedDevice
from partage.values import Frozen


class Target(Frozen):
    """One device that is offered. mig: None for a whole GPU.

    resource: the final name. strategy: of the GPU. single: at most one share per container.
    origin: path in the policy file; empty for the default. via: how pods ask for it.
    """

    gpu: Gpu
    mig: MigDevice | PlannedDevice | None
    sharing: Sharing
    strategy: Strategy
    resource: ResourceName
    single: bool = False
    guard: bool = False
    watch: WatchAction = WatchAction.WARN
    origin: str = ""
    via: Via = Via.DEVICE_PLUGIN

"""The desired state of a node: a policy, resolved on an inventory. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field
from msgspec.structs import replace

from partage.model.claim import NO_DEMANDS, Demands
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.policy import Policy, WatchAction
from partage.model.share import GpuOffer, NodeOffer
from partage.plan.offer.advertise import advertise, advertise_existing
from partage.plan.offer.assign import WantedGpus, assign
from partage.plan.offer.select import GeometryOf
from partage.plan.offer.settings import GpuSettings, settings_of


class DesiredState(WantedGpus):
    """What ``policy`` wants of ``inventory``. All mappings are by GPU UUID.

    offer: what is offered once everything is done; MIG devices that have still to be made are ``planned``.
    existing: what the MIG devices of a GPU are offered as as long as its layout has still to be made.
    settings, existing_settings: what GPUs have to be set to for ``offer`` and ``existing``. watch_of: what
    happens to a container that exceeds its share.
    """

    policy: Policy
    inventory: Inventory
    offer: NodeOffer
    existing: NodeOffer = field(default_factory=dict)
    settings: Mapping[GpuUuid, GpuSettings] = field(default_factory=dict)
    existing_settings: Mapping[GpuUuid, GpuSettings] = field(default_factory=dict)
    watch_of: Mapping[GpuUuid, WatchAction] = field(default_factory=dict)


def resolve(
    policy: Policy, inventory: Inventory, geometry_of: GeometryOf, demands: Demands = NO_DEMANDS
) -> DesiredState:
    """Resolve ``policy`` on ``inventory``. demands: what claims want of GPUs with MIG on demand.

    Raises InputError or Unsatisfiable, as ``assign`` and ``advertise``.
    """
    assignment = assign(policy, inventory, geometry_of, demands)
    return DesiredState(
        policy=policy,
        inventory=inventory,
        offer=advertise(assignment, inventory, policy),
        existing=advertise_existing(assignment, inventory, policy),
        pending=assignment.pending,
        warnings=assignment.warnings,
        strategies=assignment.strategies,
        layouts=assignment.layouts,
        settings=settings_of(assignment.targets),
        existing_settings=settings_of(assignment.existing),
        watch_of=assignment.watch_of,
        drain_of=assignment.drain_of,
        labelled=assignment.labelled,
        on_demand=assignment.on_demand,
    )


def existing_offer(offer: NodeOffer) -> dict[GpuUuid, GpuOffer]:
    """The devices of an offer that exist."""
    return {gpu: tuple(device for device in devices if not device.planned) for gpu, devices in offer.items()}


def with_driver_root(policy: Policy, driver_root: str | None) -> Policy:
    """``--driver-root`` overrides the file; dev_root follows unless the file sets it separately."""
    if driver_root is None or policy.options.driver_root == driver_root:
        return policy
    options = policy.options
    dev_root = driver_root if options.dev_root == options.driver_root else options.dev_root
    return replace(policy, options=replace(options, driver_root=driver_root, dev_root=dev_root))

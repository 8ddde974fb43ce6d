"""The desired state of a node: a policy, resolved on an inventory. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field
from msgspec.structs import replace

from partage.errors import Problem
from partage.model.claim import NO_DEMANDS, Demands
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.policy import DesiredMig, Drain, Policy, WatchAction
from partage.model.share import GpuOffer, NodeOffer
from partage.model.strategy import Strategy
from partage.plan.offer.advertise import advertise, advertise_existing
from partage.plan.offer.assign import assign
from partage.plan.offer.select import GeometryOf
from partage.plan.offer.settings import GpuSettings, settings_of
from partage.values import Frozen


class DesiredState(Frozen):
    """What ``policy`` wants of ``inventory``. All mappings are by GPU UUID.

    offer: what is offered once everything is done; MIG devices that have still to be made are ``planned``.
    existing: what the MIG devices of a GPU are offered as as long as its layout has still to be made.
    pending: what has still to be done before all of ``offer`` is there, one sentence.
    strategies: of every GPU that answers. layouts: the MIG layout, or none, of GPUs that the policy names;
    others stay as they are. settings, existing_settings: what GPUs have to be set to for ``offer`` and
    ``existing``.
    drain_of: how pods are asked to leave before a GPU changes; other GPUs wait for them.
    watch_of: what happens to a container that exceeds its share. labelled: GPUs whose layout is that of the
    node's label. on_demand: GPUs whose MIG devices are made on demand, and what claims want of each.
    """

    policy: Policy
    inventory: Inventory
    offer: NodeOffer
    existing: NodeOffer = field(default_factory=dict)
    pending: Mapping[GpuUuid, str] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()
    strategies: Mapping[GpuUuid, Strategy] = field(default_factory=dict)
    layouts: Mapping[GpuUuid, DesiredMig] = field(default_factory=dict)
    settings: Mapping[GpuUuid, GpuSettings] = field(default_factory=dict)
    existing_settings: Mapping[GpuUuid, GpuSettings] = field(default_factory=dict)
    watch_of: Mapping[GpuUuid, WatchAction] = field(default_factory=dict)
    drain_of: Mapping[GpuUuid, Drain] = field(default_factory=dict)
    labelled: frozenset[GpuUuid] = frozenset()
    on_demand: Demands = field(default_factory=dict)


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

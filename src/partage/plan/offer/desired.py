"""A policy laid over the node: what it shall offer now, and what keeps the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from partage.errors import Problem
from partage.model.gpu import Inventory
from partage.model.ids import ResourceName
from partage.model.policy import DesiredMig, Policy, Strategy, WatchAction
from partage.model.share import GpuOffer, NodeOffer, resources_of
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import GeometryOf, assign
from partage.plan.reconcile.holders import wishes_of
from partage.plan.reconcile.settings import GpuSettings, settings_of


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What ``policy`` offers on ``inventory``.

    offer: live devices only. names: all resources, those of planned devices too.
    pending: GPU UUID to what has still to be done before all of it can be offered. strategies: of every GPU
    that answers. layouts: the MIG layout, or none, that a GPU shall have; GPUs without one are left as they
    are. settings: what GPUs have to be set to before they can offer it. watch_of: what happens to a container that exceeds its share.
    """

    policy: Policy
    inventory: Inventory
    offer: NodeOffer
    names: tuple[ResourceName, ...] = ()
    pending: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    layouts: Mapping[str, DesiredMig] = field(default_factory=dict)
    settings: Mapping[str, GpuSettings] = field(default_factory=dict)
    watch_of: Mapping[str, WatchAction] = field(default_factory=dict)


def resolve(policy: Policy, inventory: Inventory, geometry_of: GeometryOf) -> DesiredState:
    """Lay ``policy`` over ``inventory``.

    Raises InputError or Unsatisfiable: what ``assign`` and ``advertise`` find.
    """
    assignment = assign(policy, inventory, geometry_of)
    planned = advertise(assignment, inventory, policy)
    return DesiredState(
        policy=policy,
        inventory=inventory,
        offer=live(planned),
        names=tuple(resources_of(planned)),
        pending=assignment.pending,
        warnings=assignment.warnings,
        strategies=assignment.strategies,
        layouts=wishes_of(policy, inventory, geometry_of),
        settings=settings_of(assignment.targets),
        watch_of=assignment.watch_of,
    )


def live(offer: NodeOffer) -> dict[str, GpuOffer]:
    """Those devices of an offer that exist."""
    return {gpu: tuple(one for one in offerings if not one.planned) for gpu, offerings in offer.items()}


def with_driver_root(policy: Policy, driver_root: str | None) -> Policy:
    """``--driver-root`` overrules the file; the device nodes follow where the file does not part them."""
    if driver_root is None or policy.options.driver_root == driver_root:
        return policy
    options = policy.options
    dev_root = driver_root if options.dev_root == options.driver_root else options.dev_root
    return replace(policy, options=replace(options, driver_root=driver_root, dev_root=dev_root))

"""A policy applied to a node: what should be offered now, and what is still missing. Pure."""

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

    offer: live devices only. names: all resources, including those of planned devices.
    pending: GPU UUID to what must be done before everything can be offered. strategies: of every GPU that
    answers.
    layouts: the desired MIG layout of a GPU; GPUs without an entry are left as they are. settings: what
    must be set on a GPU before its shares can be offered. watch_of: what happens to a container that
    exceeds its share.
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
    """Apply ``policy`` to ``inventory``.

    Raises InputError or Unsatisfiable, as ``assign`` and ``advertise``.
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
    """The devices of an offer that exist."""
    return {gpu: tuple(one for one in offerings if not one.planned) for gpu, offerings in offer.items()}


def with_driver_root(policy: Policy, driver_root: str | None) -> Policy:
    """``--driver-root`` overrides the file; dev_root follows unless the file sets it separately."""
    if driver_root is None or policy.options.driver_root == driver_root:
        return policy
    options = policy.options
    dev_root = driver_root if options.dev_root == options.driver_root else options.dev_root
    return replace(policy, options=replace(options, driver_root=driver_root, dev_root=dev_root))

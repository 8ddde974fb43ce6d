"""A policy laid over the node: what it shall offer now, and what keeps the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from partage.edges.kubelet.sockets import LONGEST_SOCKET_PATH
from partage.errors import InputError, Problem
from partage.model.gpu import Inventory
from partage.model.ids import plugin_socket_name
from partage.model.policy import DesiredMig, Policy, Strategy, WatchAction
from partage.model.share import GpuOffer, NodeOffer, resources_of
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import GeometryOf, assign
from partage.plan.reconcile.holders import wishes_of
from partage.plan.reconcile.settings import GpuSettings, settings_of


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What ``policy`` offers on ``inventory``.

    offer: live devices only. pending: GPU UUID to what has still to be done before all of it can be offered.
    strategies: of every GPU that answers. layouts: the MIG layout, or none, that a GPU shall have; GPUs
    without one are left as they are. settings: what GPUs have to be set to before they can offer it.
    watch_of: what happens to a container that exceeds its share.
    """

    policy: Policy
    inventory: Inventory
    offer: NodeOffer
    pending: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    layouts: Mapping[str, DesiredMig] = field(default_factory=dict)
    settings: Mapping[str, GpuSettings] = field(default_factory=dict)
    watch_of: Mapping[str, WatchAction] = field(default_factory=dict)


def resolve(policy: Policy, inventory: Inventory, geometry_of: GeometryOf, kubelet_dir: Path) -> DesiredState:
    """Lay ``policy`` over ``inventory``.

    Raises InputError or Unsatisfiable: what ``assign`` and ``advertise`` find, a resource whose socket's path
    would be too long.
    """
    assignment = assign(policy, inventory, geometry_of)
    planned = advertise(assignment, inventory, policy)
    problems = _long_paths(policy, planned, kubelet_dir)
    if problems:
        raise InputError(problems)
    return DesiredState(
        policy=policy,
        inventory=inventory,
        offer=live(planned),
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


def _long_paths(policy: Policy, offer: NodeOffer, kubelet_dir: Path) -> list[Problem]:
    problems = []
    for name in resources_of(offer):
        path = kubelet_dir / plugin_socket_name(name)
        size = len(str(path).encode())
        if size > LONGEST_SOCKET_PATH:
            limit = LONGEST_SOCKET_PATH
            message = f"the path of the socket of {name}, {path}, has {size} bytes; the system takes {limit}"
            hint = "choose a shorter --kubelet-dir or a shorter resource name"
            problems.append(Problem(policy.source, "", "error", message, hint))
    return problems


def with_driver_root(policy: Policy, driver_root: str | None) -> Policy:
    """``--driver-root`` overrules the file; the device nodes follow where the file does not part them."""
    if driver_root is None or policy.options.driver_root == driver_root:
        return policy
    options = policy.options
    dev_root = driver_root if options.dev_root == options.driver_root else options.dev_root
    return replace(policy, options=replace(options, driver_root=driver_root, dev_root=dev_root))

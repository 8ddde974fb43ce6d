"""Lay a policy over an inventory: which device is offered how, under which name, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from partage.errors import Problem
from partage.model.geometry import Geometry, ProfileSpec
from partage.model.gpu import Gpu, Inventory, MigDevice
from partage.model.ids import ResourceName
from partage.model.layout import LayoutItem
from partage.model.placement import Placement
from partage.model.policy import Policy, Sharing, Strategy

GeometryOf = Callable[[Gpu], Geometry | None]
"""Looks a GPU's model up; None where nothing is known about its MIG profiles."""


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """A MIG device that a layout asks for and that does not exist yet."""

    item: LayoutItem
    spec: ProfileSpec
    placement: Placement


@dataclass(frozen=True, slots=True)
class Target:
    """One device that is offered. mig: None for a whole GPU.

    resource: the final name. strategy: the GPU's. single: one share per container at most.
    origin: path in the policy file, empty for the default.
    """

    gpu: Gpu
    mig: MigDevice | PlannedDevice | None
    sharing: Sharing
    strategy: Strategy
    resource: ResourceName
    single: bool = False
    guard: bool = False
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The policy, laid over one inventory.

    targets: ordered by GPU index, then MIG index or placement.
    strategies: of every GPU that answers, by UUID (a MIG GPU without instances has no target).
    pending: GPU UUID to a sentence: what has still to be done by hand or by a later step (a layout to be made).
    warnings: doubtful things, each with file and path.
    """

    targets: tuple[Target, ...]
    strategies: Mapping[str, Strategy]
    pending: Mapping[str, str]
    warnings: tuple[Problem, ...] = ()


def assign(policy: Policy, inventory: Inventory, geometry_of: GeometryOf) -> Assignment:
    """Lay ``policy`` over ``inventory``.

    Raises InputError (a GPU that the node does not have, overlapping selectors) or Unsatisfiable (a MIG layout
    that does not fit, MIG strategy ``single`` on unequal devices), each with *all* problems found; InputError
    outranks.
    """
    raise NotImplementedError

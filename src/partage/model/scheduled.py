"""Nodes and pods as a scheduler counts them: CPUs, memory, extended resources, and the names of claims."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from partage.values import Frozen


class ScheduledNode(Frozen):
    """What pods can have of a node. devices: extended resources. product: of its GPUs, by its label; empty:
    not known.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    devices: Mapping[str, int] = field(default_factory=dict)
    product: str = ""


class ScheduledPod(Frozen):
    """What a pod asks for. node: where it is; empty: it waits. devices: extended resources, by name. claims:
    names of its ResourceClaims, in its namespace; None for one that is not made yet. owner: kind of its
    controller.
    """

    namespace: str
    name: str
    uid: str
    node: str
    cpu_milli: int
    memory_mib: int
    devices: tuple[tuple[str, int], ...] = ()
    claims: tuple[str | None, ...] = ()
    owner: str = ""

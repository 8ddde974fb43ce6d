"""Whether the agent has come to rest: it knows the node as it is, and nothing more happens by itself. Pure.

A story is told at rest only, so that it reads the same each time it is played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from partage.model.gpu import Inventory
from partage.plan.reconcile.known_node import with_observed
from partage.plan.reconcile.node_plan import Phase
from partage.plan.report import Report
from partage.sim.kubelet.pods import PodStatus

_MOVING = (Phase.WITHDRAWING, Phase.READY, Phase.CHANGING, Phase.VERIFYING, Phase.UNKNOWN)
"""Phases that end without anybody's help. A failed attempt is tried again, but not soon."""


def at_rest(
    report: Report, inventory: Inventory, pods: Sequence[PodStatus], allocatable: Mapping[str, int]
) -> bool:
    """Whether all news has arrived. inventory: the node as it is. allocatable: as the kubelet has it."""
    # What sets limits is no fact of the hardware: the agent adds it.
    inventory = replace(inventory, limits_by=report.node.inventory.limits_by)
    return (
        not any(gpu.plan and gpu.plan.phase in _MOVING for gpu in report.gpus)
        and (bool(report.dependencies.hardware) or with_observed(report.node, inventory) == report.node)
        and holders_known(report, pods)
        and _ends_known(report, pods)
        and all(allocatable.get(row.name, 0) == row.healthy for row in report.resources)
        and not any(row.withdrawn for row in report.resources)
    )


def holders_known(report: Report, pods: Sequence[PodStatus]) -> bool:
    """The agent knows the holder of every share of a running container."""
    named = {entry.id for entry in report.entries if entry.holder is not None}
    return all(
        share in named
        for status in pods
        if status.holds
        for container in status.pod.lasting
        for ids in status.container(container.name).ids.values()
        for share in ids
    )


def _ends_known(report: Report, pods: Sequence[PodStatus]) -> bool:
    """The agent takes no share for held whose pod has ended."""
    held = {
        share
        for status in pods
        if status.holds
        for container in status.containers
        for ids in container.ids.values()
        for share in ids
    }
    return all(entry.id in held for entry in report.entries)

"""Who holds GPU memory that is shared by amounts: ``show --memory`` and ``inspect``."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from partage.answers import common_node
from partage.answers.common_output import say_lines

if TYPE_CHECKING:
    from partage.cli.memory_tables import InspectedNode

_NONE = "no GPU is shared by amounts of memory here: a policy with mps: {unit: 1Gi} does that"


def memory_here(machine: str | None, run_dir: str | None) -> list[InspectedNode]:
    """This node, as its agent reports it; empty if no GPU is shared by amounts. Raises DaemonError."""
    from partage.cli.memory_tables import InspectedNode
    from partage.errors import DaemonError
    from partage.plan.cluster.gpu_memory import node_memory

    report = common_node.agent_report(machine, run_dir)
    if report is None:
        raise DaemonError(
            "no agent runs here, and only an agent knows who holds what",
            "run it on a node with an agent; in a cluster: partage inspect NODE",
        )
    memory = node_memory(report.offer, ((one.resource, one.id, one.holders) for one in report.held))
    return [InspectedNode(socket.gethostname(), "", memory)] if memory.cards else []


def print_memory(nodes: Sequence[InspectedNode], *, details: bool = False) -> None:
    """The table of ``kubectl inspect gpushare``; details: the pods, too. Raises Unsatisfiable for no node."""
    from partage.cli import memory_tables
    from partage.errors import Unsatisfiable

    if not nodes:
        raise Unsatisfiable(_NONE)
    text = memory_tables.details(nodes) if details else memory_tables.summary(nodes)
    say_lines(f"{text}\n")

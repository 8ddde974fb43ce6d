"""Whether a report that lies in a run directory is of this node, by an agent that still runs.

A run directory can outlive its agent, be shared by nodes, or have been filled by a simulation.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from partage.model.gpu import Inventory, LostGpu
from partage.model.ids import GpuUuid
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.answers.documents.node import NodeRow
    from partage.answers.documents.report import ReportingAgent


class ThisNode(Frozen):
    """The node on which a report is read; without a driver call, so that reading a report stays cheap.

    simulated: named with ``--machine``. boot_id: empty if it does not count (only its agent knows how often a
    simulated node has booted). gpus: UUIDs; empty if not known.
    """

    simulated: bool
    pid_namespace: str
    boot_id: str
    gpus: frozenset[GpuUuid]


def why_not_ours(agent: ReportingAgent, node: NodeRow, here: ThisNode, *, agent_runs: bool) -> str:
    """Why a report says nothing about this node now; empty if it does.

    agent, node: of the report. agent_runs: a process here has the agent's pid.
    """
    if node.simulated and not here.simulated:
        return "it is of a simulated node, which --machine has to name"
    if here.simulated and not node.simulated:
        return "it is of a real node"
    if here.boot_id and node.boot_id and here.boot_id != node.boot_id:
        return "it is of another node, or from before this node's last boot"
    if not _has_gpus_of(node, here):
        return "it is of a node with other GPUs"
    if agent.pid_namespace == here.pid_namespace and not agent_runs:
        return f"its agent (pid {agent.pid}) has ended"
    return ""


def _has_gpus_of(node: NodeRow, here: ThisNode) -> bool:
    """On a real node one GPU in common is enough: kernel and NVML can each list some that the other lacks."""
    gpus = {gpu.uuid for gpu in node.gpus} | _known(node.lost)
    if not gpus or not here.gpus:
        return True
    return gpus == here.gpus if here.simulated else not here.gpus.isdisjoint(gpus)


def _known(lost: Iterable[LostGpu]) -> set[GpuUuid]:
    return {gpu.uuid for gpu in lost if gpu.uuid is not None}


def this_node(machine: Inventory | None) -> ThisNode:
    """The node that is simulated, or this one as the kernel and the driver's files in /proc describe it."""
    from partage.edges.hardware.host import Host
    from partage.edges.host.procfs import pid_namespace

    namespace = pid_namespace(Path("/proc"))
    if machine is not None:
        uuids = {gpu.uuid for gpu in machine.gpus} | _known(machine.lost)
        return ThisNode(True, namespace, "", frozenset(uuids))
    host = Host()
    found = (host.gpu_uuid(address) for address in host.gpu_addresses())
    return ThisNode(False, namespace, host.boot_id(), frozenset(uuid for uuid in found if uuid is not None))

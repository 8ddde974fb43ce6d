"""Whether a report that lies in a run directory is of this node, by an agent that still runs.

A run directory can outlive its agent, be shared by nodes, or have been filled by a simulation.
"""

from __future__ import annotations

from pathlib import Path

from partage.model.gpu import Inventory
from partage.values import Frozen


class ReportOrigin(Frozen):
    """The agent that wrote a report, and its node.

    pid: the agent's, in the namespace ``pid_namespace`` (as ``/proc/self/ns/pid`` names it).
    boot_id: empty if not known. gpus: UUIDs of all GPUs that it knew.
    """

    pid: int
    pid_namespace: str
    simulated: bool
    boot_id: str
    gpus: frozenset[str]


class ThisNode(Frozen):
    """The node on which a report is read; without a driver call, so that reading a report stays cheap.

    simulated: named with ``--machine``. boot_id: empty if it does not count (only its agent knows how often a
    simulated node has booted). gpus: UUIDs; empty if not known.
    """

    simulated: bool
    pid_namespace: str
    boot_id: str
    gpus: frozenset[str]


def why_not_ours(origin: ReportOrigin, here: ThisNode, *, agent_runs: bool) -> str:
    """Why a report says nothing about this node now; empty if it does. agent_runs: its pid is in use here."""
    if origin.simulated and not here.simulated:
        return "it is of a simulated node"
    if here.simulated and not origin.simulated:
        return "it is of a real node"
    if here.boot_id and origin.boot_id and here.boot_id != origin.boot_id:
        return "it is of another node, or from before this node's last boot"
    if here.gpus and origin.gpus and not _same_gpus(origin, here):
        return "it is of a node with other GPUs"
    if origin.pid_namespace == here.pid_namespace and not agent_runs:
        return f"its agent (pid {origin.pid}) has ended"
    return ""


def _same_gpus(origin: ReportOrigin, here: ThisNode) -> bool:
    """On a real node one GPU in common is enough: kernel and NVML can each list some that the other lacks."""
    return origin.gpus == here.gpus if here.simulated else not origin.gpus.isdisjoint(here.gpus)


def this_node(machine: Inventory | None) -> ThisNode:
    """The node that is simulated, or this one as the kernel and the driver's files in /proc describe it."""
    from partage.edges.hardware.host import Host
    from partage.edges.hardware.procfs import pid_namespace

    namespace = pid_namespace(Path("/proc"))
    if machine is not None:
        return ThisNode(True, namespace, "", gpu_uuids(machine))
    host = Host()
    uuids = [host.gpu_uuid(address) for address in host.gpu_addresses()]
    known = frozenset(uuid for uuid in uuids if uuid is not None)
    return ThisNode(False, namespace, host.boot_id(), known if len(known) == len(uuids) else frozenset())


def gpu_uuids(inventory: Inventory) -> frozenset[str]:
    """UUIDs of all GPUs whose UUID is known, lost ones too."""
    return frozenset({gpu.uuid for gpu in inventory.gpus} | {one.uuid for one in inventory.lost if one.uuid})

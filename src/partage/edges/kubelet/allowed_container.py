"""Whether a process belongs to one container of one set of pods.

The helper on a Kubernetes node serves the agent's container only: that a process is root says little,
because root in any container that has the run directory mounted is root, too. The kernel gives the
process's pid, its cgroup gives the container, and the kubelet's log links name the container's pod.
"""

from __future__ import annotations

from pathlib import Path

from partage.edges.host.procfs import cgroups_of
from partage.edges.kubelet.container_names import container_names
from partage.errors import InputError
from partage.model.cgroup import parse_cgroup
from partage.values import Frozen


class AllowedContainer(Frozen):
    """The container with this name, in the pods of a namespace whose names begin with ``pods``."""

    namespace: str
    pods: str
    container: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pods}*/{self.container}"


def parse_allowed_container(text: str) -> AllowedContainer:
    """``NAMESPACE/POD*/CONTAINER``. Raises InputError if it is something else."""
    match text.split("/"):
        case [namespace, pods, container] if namespace and len(pods) > 1 and pods.endswith("*") and container:
            return AllowedContainer(namespace, pods[:-1], container)
    raise InputError(
        f"{text!r} is not NAMESPACE/POD*/CONTAINER", "for example gpu/partage-agent-*/agent; POD ends with *"
    )


def why_not_allowed(allowed: AllowedContainer, pid: int, proc: Path, logs: Path) -> str:
    """Why the process is not in the allowed container; empty if it is. Blocks for one listing of ``logs``.

    A pid that ends and is given to a process of the allowed container, between the connection and this
    look, would be let in; to do that, one has to be root in a container with the run directory already.
    """
    identity = parse_cgroup(cgroups_of(proc, pid) if pid else ()).container
    if not identity:
        return f"process {pid} is in no container that can be seen (the helper needs hostPID)"
    holder = container_names(logs).get(identity)
    if holder is None:
        return f"process {pid} is in container {identity[:12]}, which {logs} does not name"
    found = f"{holder.namespace}/{holder.pod}/{holder.container}"
    right = (
        holder.namespace == allowed.namespace
        and holder.pod.startswith(allowed.pods)
        and holder.container == allowed.container
    )
    return "" if right else f"process {pid} is in {found}, and only {allowed} is allowed"

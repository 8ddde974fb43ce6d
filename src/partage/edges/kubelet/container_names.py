"""The pod of a container id, from the names of the kubelet's log files.

For every container and every runtime the kubelet creates a link
``/var/log/containers/<pod>_<namespace>_<container>-<id>.log``. Reading that directory needs neither the
runtime's socket (as powerful as root) nor a token for the API server. Names contain no underscore and an id
has 64 digits, so a file name has one meaning only. The kubelet cuts it at 255 bytes, including the id: such a
name is ignored.

The helper on a Kubernetes node serves the agent's container only: that a process is root says little, because
root in any container that has the run directory mounted is root, too. The kernel gives the process's pid, its
cgroup gives the container, and the kubelet's log links name the container's pod.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from partage.edges.host.procfs import cgroups_of
from partage.errors import InputError
from partage.model.cgroup import parse_cgroup
from partage.model.ids import ContainerId
from partage.model.paths import CONTAINER_LOGS
from partage.plan.serve.ledger_entry import Holder
from partage.values import Frozen

_LOGS = Path(CONTAINER_LOGS)
_NAME = re.compile(r"([^_]+)_([^_]+)_([^_]+)-([0-9a-f]{64})\.log", re.ASCII)


def container_names(directory: Path = _LOGS) -> Mapping[ContainerId, Holder]:
    """Container id to its pod and container; empty if the directory does not exist. Blocks for one listing.

    Includes init containers and containers that ended recently. An id with two names is left out.
    """
    found: dict[ContainerId, Holder | None] = {}
    try:
        entries = sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return {}
    for entry in entries:
        match = _NAME.fullmatch(entry)
        if match is not None:
            pod, namespace, container = match.group(1, 2, 3)
            identity = ContainerId(match[4])
            found[identity] = None if identity in found else Holder(namespace, pod, container)
    return {identity: holder for identity, holder in found.items() if holder is not None}


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

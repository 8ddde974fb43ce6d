"""Pods that wait behind full GPUs, whoever makes them, and the GPUs that change as their holders end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.e2e.cluster import GPU, SHARED, Cluster
from tests.e2e.tenants import daemon_set, deployment, job

SPEC: dict[str, Any] = {"terminationGracePeriodSeconds": 2}
"""With 0, an ordinary deletion is one by force."""


def delete(node: Cluster, name: str) -> None:
    node.kubectl("delete", "pod", name)


def _complete(node: Cluster, name: str) -> None:
    node.kubectl("exec", name, "--", "touch", "/end")


def _a_deployment(node: Cluster) -> None:
    node.apply(deployment("queue", 6, {GPU: 1}, **SPEC))


def _daemon_sets(node: Cluster) -> None:
    """Each makes the next pod as soon as its pod has ended."""
    node.apply(*(daemon_set(f"queue-{number}", {GPU: 1}, **SPEC) for number in range(5)))


def _a_job(node: Cluster) -> None:
    node.apply(job("queue", 6, 20, {GPU: 1}, **SPEC))


QUEUES: Mapping[str, tuple[Callable[[Cluster], None], Callable[[Cluster, str], None]]] = {
    "Deployment": (_a_deployment, delete),
    "DaemonSet": (_daemon_sets, delete),
    "Job": (_a_job, _complete),
}


def phases(node: Cluster) -> dict[str, set[str]]:
    """Phase to the pods that are in it and not being deleted."""
    found: dict[str, set[str]] = {}
    for one in node.get("pods", "-l", "partage-e2e=tenant")["items"]:
        if "deletionTimestamp" not in one["metadata"]:
            found.setdefault(one["status"]["phase"], set()).add(one["metadata"]["name"])
    return found


def until_full(node: Cluster, count: int = 4) -> list[str]:
    """Wait until all GPUs are held while a pod waits for one; the pods that hold them."""

    def full() -> bool:
        found = phases(node)
        return len(found.get("Running", ())) == count and bool(found.get("Pending"))

    node.until("the GPUs are held and a pod waits", full)
    node.until("the ledger names the holders", lambda: len(node.ledger()) == count)
    return sorted(phases(node)["Running"])


def until_gpus_wait(node: Cluster, policy: str, count: int) -> None:
    """Choose a policy for which so many GPUs have to change, all of them held."""
    node.choose(policy)
    node.until("the GPUs wait for their holders", lambda: len(node.gpus_in("waiting")) == count)


def scheduled(node: Cluster) -> int:
    """How many tenants were given a place on the node so far."""
    events = node.get("events", "--field-selector", "reason=Scheduled")["items"]
    return len({one["involvedObject"]["uid"] for one in events})


def ends_change_gpus(node: Cluster, holders: list[str], end: Callable[[Cluster, str], None]) -> None:
    """Each end of a holder changes a GPU, and no other pod gets one meanwhile."""
    for number, holder in enumerate(holders, 1):
        end(node, holder)
        node.until_allocatable_count(SHARED, 2 * number, timeout_s=30)
        assert len(node.kubelet_holds()) == len(holders) - number
        node.nothing_is_given_twice()
    node.until_allocatable({SHARED: 2 * len(holders)})

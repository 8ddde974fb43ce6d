"""Pods that the kubelet has from files: they hold shares like others, and nobody can evict them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import MACHINE, Cluster
from tests.e2e.tenants import pod

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
DRAINS = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: 2}\n    change: drain\n"
POLICIES = {"default": "version: partage/v1\n", "drains": DRAINS}


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Cluster]:
    """Four exclusive GPUs."""
    if not cluster.own:
        pytest.skip("only the node of an own cluster has a folder of static pods")
    cluster.install(hardware={"machine": MACHINE}, config={"map": POLICIES}, cluster={"drain": True})
    cluster.until_allocatable({GPU: 4})
    yield cluster
    for name in cluster.static_pods():
        cluster.remove_static_pod(name)
    cluster.choose(None)
    cluster.uninstall()


def test_a_static_pod_holds_its_gpu_until_its_file_is_gone(node: Cluster) -> None:
    node.add_static_pod(pod("static", {GPU: 1}, restartPolicy="Always"))
    name = f"static-{node.node}"
    node.until_phase(name, "Running")
    node.until_ledger(node.shares(name))
    before = node.pod(name)["status"]["containerStatuses"][0]["containerID"]
    node.choose("drains")
    node.until_allocatable({SHARED: 6})
    node.until("the condition names it", lambda: name in node.condition("PartagePolicyInForce")["message"])
    node.restart_kubelet()
    node.until("the kubelet names it again", lambda: name in node.kubelet_holds())
    node.until_allocatable({SHARED: 6})
    (status,) = node.pod(name)["status"]["containerStatuses"]
    assert (status["containerID"], status["restartCount"]) == (before, 0)
    assert not node.events("DrainedForChange", name)
    node.remove_static_pod("static")
    node.until_allocatable({SHARED: 8})
    node.nothing_is_given_twice()

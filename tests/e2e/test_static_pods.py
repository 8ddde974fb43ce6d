"""Pods that the kubelet has from files: they hold shares like others, and nobody can evict them."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import GPU, SHARED, TWICE, WHOLE, Cluster
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("own")
POLICIES = {"default": WHOLE, "drains": TWICE + "    change: drain\n"}


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

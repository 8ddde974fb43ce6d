"""The agent is registered with a real kubelet again, whatever became of the registration before."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import GPU, NAMESPACE, SHARED, TWICE, WHOLE, Cluster
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("own")
POLICIES = {"default": WHOLE, "shared": TWICE}


@pytest.fixture
def node(node: Cluster) -> Iterator[Cluster]:
    """Four exclusive GPUs that nobody holds, whatever a test did to the kubelet's table of plugins."""
    yield node
    node.restart_kubelet()


def _serves(node: Cluster, name: str, resource: str) -> None:
    """A new pod gets a share from the agent, and the condition says that it can."""
    node.apply(pod(name, {resource: 1}))
    node.until_phase(name, "Running", timeout_s=30)
    assert node.environment(name)["PARTAGE_RESOURCE"] == resource
    node.until("the condition says so", lambda: node.condition("PartageReady")["status"] == "True")
    node.kubectl("delete", "pod", name)


def _replace_agent(node: Cluster, *by_force: str) -> None:
    old = node.component("agent")["metadata"]["name"]
    node.kubectl("delete", "pod", "-n", NAMESPACE, old, *by_force)
    node.until("another agent runs", lambda: node.component("agent")["metadata"]["name"] != old)
    node.until("it is registered", lambda: all(row["registered"] for row in node.report()["resources"]))
    node.until_allocatable({GPU: 4})


def test_an_agent_that_is_replaced_again_and_again_is_served_each_time(node: Cluster) -> None:
    for number in range(4):
        _replace_agent(node, *(() if number % 2 else ("--grace-period=0", "--force")))
        _serves(node, f"after-{number}", GPU)


def test_a_second_register_for_a_living_socket_does_no_harm(node: Cluster) -> None:
    node.register_again(GPU)
    _serves(node, "beside-it", GPU)
    for number in range(2):
        _replace_agent(node)
        _serves(node, f"after-{number}", GPU)


@pytest.mark.parametrize("seconds", [7, pytest.param(25, marks=pytest.mark.slow)])
def test_a_kubelet_that_stands_still_while_a_resource_is_registered(node: Cluster, seconds: int) -> None:
    """Register and PodResources run into their deadlines; the kubelet answers all of it when it goes on."""
    kubelet = node.pid_of("kubelet")
    agent = node.component("agent")["metadata"]["name"]
    os.kill(kubelet, signal.SIGSTOP)
    try:
        node.choose("shared")
        time.sleep(seconds)
    finally:
        os.kill(kubelet, signal.SIGCONT)
    node.until_allocatable({SHARED: 8}, timeout_s=90)
    _serves(node, "first", SHARED)
    node.until_ledger({})
    node.apply(pod("second", {SHARED: 1}))
    node.until_phase("second", "Running")
    node.until_ledger(node.shares("second"))
    (status,) = node.get("pod", "-n", NAMESPACE, agent)["status"]["containerStatuses"]
    assert status["restartCount"] == 0

"""Pods come while the agent is killed; a removed chart leaves what the documents say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster
from tests.e2e.tenants import deployment, pod

pytestmark = pytest.mark.usefixtures("tenants")

SHARED = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: 3}\n"
NAME = "nvidia.com/gpu.shared"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    with cluster.with_chart(hardware={"machine": MACHINE}, config={"map": {"default": SHARED}}):
        cluster.until_allocatable({NAME: 12})
        yield cluster


def test_a_burst_of_pods_while_the_agent_is_killed_twice(node: Cluster) -> None:
    """Scenario 2: pods that the kubelet could not admit fail and are made anew; nobody shares a share."""
    node.apply(deployment("burst", 12, {NAME: 1}))
    try:
        for enough in (1, 6):
            node.until_running("burst", enough)
            agent = node.component("agent")["metadata"]["name"]
            node.kubectl("delete", "pod", "-n", NAMESPACE, agent, "--grace-period=0", "--force")
        node.until_ledger(node.shares(*node.until_running("burst", 12)))
    finally:
        node.kubectl("delete", "deployment", "burst", "--cascade=foreground", "--wait")


def test_the_agent_is_killed_between_allocate_and_the_containers_start(node: Cluster) -> None:
    """Scenario 2: an init container waits between the two. The container starts although no agent runs."""
    if not node.own:
        pytest.skip("only on an own cluster a container can be killed without a warning")
    node.until_allocatable({NAME: 12})
    node.until("nothing is held", lambda: not node.report()["held"])
    between = pod("between", {NAME: 1})
    between["spec"]["initContainers"] = [
        {
            "name": "gate",
            "image": "docker.io/library/busybox:local",
            "command": ["sh", "-c", "until [ -e /open ]; do sleep 0.1; done"],
        }
    ]
    agent = node.component("agent")
    name = agent["metadata"]["name"]
    if _restarts(node, name):
        said = node.kubectl("logs", "-n", NAMESPACE, name, "-c", "agent", "--previous", check=False)
        pytest.fail(f"a new agent waits for the end of one whose pod was deleted by force:\n{said[-2000:]}")
    node.apply(between)
    given = node.until("its shares are given", lambda: node.report()["held"]) or []
    assert {row["certainty"] for row in given} <= {"tentative", "observed"}
    node.until("the gate runs", lambda: _gate_runs(node))  # shares are given before any container starts
    node.kill_container(agent, "agent")
    node.kubectl("exec", "between", "-c", "gate", "--", "touch", "/open")
    node.until_phase("between", "Running")
    node.until("it runs again", lambda: _restarts(node, agent["metadata"]["name"]) == 1)
    shares = node.shares("between")
    assert shares["between"] == {row["id"] for row in given}
    node.until_ledger(shares)


def _gate_runs(node: Cluster) -> bool:
    (status,) = node.pod("between")["status"]["initContainerStatuses"]
    return "running" in status["state"]


def _restarts(node: Cluster, agent: str) -> int:
    (status,) = node.get("pod", "-n", NAMESPACE, agent)["status"]["containerStatuses"]
    restarts: int = status["restartCount"]
    return restarts if status["ready"] else 0


def test_a_removed_chart_leaves_what_the_documents_name_and_nothing_else(node: Cluster) -> None:
    node.until_allocatable({NAME: 12})
    node.run("helm", "uninstall", "partage", "-n", NAMESPACE, "--wait")
    # The kubelet forgets the shares of a plugin that has gone; the name stays until it restarts.
    node.until("nothing is offered", lambda: not any(node.allocatable().values()))
    kinds = "daemonsets,pods,configmaps,serviceaccounts,roles,rolebindings,services"
    wide = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"

    def gone() -> bool:
        for names, where in ((kinds, ("-n", NAMESPACE)), (wide, ())):
            left = node.get(names, *where, "-l", "app.kubernetes.io/name=partage")["items"]
            assert [one["metadata"]["name"] for one in left] == []
        return True

    node.until("the objects of the chart are gone", gone)  # its pods end after helm has
    if node.folder is not None:
        sockets = (node.folder / "node/var/lib/kubelet/device-plugins").glob("nvidia-*.sock")
        assert list(sockets) == []
        assert {one.name for one in (node.folder / "node/var/lib/partage").iterdir()} <= {
            "lock",
            "state.json",
            "journal.jsonl",
            "history",
        }
    labels = node.get("node", node.node)["metadata"]["labels"]
    assert {key for key in labels if "nvidia.com" in key or "partage.dev" in key}, "the labels stay"

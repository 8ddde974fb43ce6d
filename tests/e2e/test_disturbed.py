"""Pods come while the agent is killed; a removed chart leaves what the documents say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster, Json, pod

pytestmark = pytest.mark.usefixtures("tenants")

SHARED = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: 3}\n"
NAME = "nvidia.com/gpu.shared"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    cluster.install(hardware={"machine": MACHINE}, config={"map": {"default": SHARED}})
    cluster.until_allocatable({NAME: 12})
    yield cluster
    cluster.uninstall()


def _deployment(replicas: int) -> Json:
    template = pod("unused", {NAME: 1})
    labels = {"app": "burst", "partage-e2e": "tenant"}
    spec = template["spec"] | {"restartPolicy": "Always"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "burst", "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "burst"}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _running(node: Cluster) -> list[str]:
    pods = node.get("pods", "-l", "app=burst")["items"]
    return [
        one["metadata"]["name"]
        for one in pods
        if one["status"]["phase"] == "Running" and "deletionTimestamp" not in one["metadata"]
    ]


def _until_running(node: Cluster, least: int) -> list[str]:
    def enough() -> list[str]:
        found = _running(node)
        assert len(found) >= least, found
        return found

    return node.until(f"{least} pods run", enough, timeout_s=120)


def test_a_burst_of_pods_while_the_agent_is_killed_twice(node: Cluster) -> None:
    """Scenario 2: pods that the kubelet could not admit fail and are made anew; nobody shares a share."""
    node.apply(_deployment(12))
    try:
        for enough in (1, 6):
            _until_running(node, enough)
            agent = node.component("agent")["metadata"]["name"]
            node.kubectl("delete", "pod", "-n", NAMESPACE, agent, "--grace-period=0", "--force")
        running = _until_running(node, 12)
        shares = {name: node.environment(name)["PARTAGE_SHARES"] for name in running}
        assert len(set(shares.values())) == 12

        def ledger() -> bool:
            held = {holder["pod"]: row["id"] for row in node.report()["held"] for holder in row["holders"]}
            assert held == shares
            return True

        node.until("the ledger has what the containers have", ledger)
    finally:
        node.kubectl("delete", "deployment", "burst", "--cascade=foreground", "--wait")


def test_a_removed_chart_leaves_what_the_documents_name_and_nothing_else(node: Cluster) -> None:
    node.until_allocatable({NAME: 12})
    node.uninstall()
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
        }
    labels = node.get("node", node.node)["metadata"]["labels"]
    assert {key for key in labels if "nvidia.com" in key or "partage.dev" in key}, "the labels stay"

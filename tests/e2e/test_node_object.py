"""What the agent writes to its Node, and what its account may not do."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bench.processes import memory
from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    with cluster.with_chart(hardware={"machine": MACHINE}):
        cluster.until_allocatable({"nvidia.com/gpu": 4})
        yield cluster


def _labels(cluster: Cluster) -> dict[str, str]:
    found: dict[str, str] = cluster.get("node", cluster.node)["metadata"]["labels"]
    return found


def test_the_labels_of_feature_discovery_are_on_the_node(node: Cluster) -> None:
    def right() -> bool:
        labels = _labels(node)
        assert labels.get("nvidia.com/gpu.product") == "NVIDIA-A100-SXM4-40GB", labels
        assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.replicas"]) == ("4", "1")
        return True

    node.until("the node has its labels", right)


def test_labels_that_others_change_are_set_again_and_theirs_stay(node: Cluster) -> None:
    node.until("the node has its labels", lambda: "nvidia.com/gpu.count" in _labels(node))
    node.kubectl("label", "node", node.node, "--overwrite", "nvidia.com/gpu.count=7", "someone.else/own=yes")
    node.until("the label is right again", lambda: _labels(node)["nvidia.com/gpu.count"] == "4")
    assert _labels(node)["someone.else/own"] == "yes"
    node.kubectl("label", "node", node.node, "someone.else/own-")


def test_the_account_may_change_its_own_node_and_no_other(node: Cluster) -> None:
    """The token is one for the agent's pod, so the API server knows on which node it is."""
    own, agent = node.node, node.component("agent")["metadata"]["name"]
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", agent)
    token = node.kubectl("create", "token", "partage-agent", "-n", NAMESPACE, *bound).strip()
    other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "another-node"}}
    node.apply(other)
    patch = json.dumps({"metadata": {"labels": {"partage.dev/tried": "yes"}}})

    def tried(name: str) -> str:
        config = ("--kubeconfig", "/dev/null", "--server", _server(node), "--insecure-skip-tls-verify")
        return node.kubectl(*config, "--token", token, "patch", "node", name, "-p", patch, check=False)

    try:
        assert "may change its own node only" in tried("another-node")
        assert "patched" in tried(own)
    finally:
        node.kubectl("delete", "node", "another-node")
        node.kubectl("label", "node", own, "partage.dev/tried-")


@pytest.mark.parametrize(
    "right",
    [
        ("list", "pods"),
        ("create", "pods/eviction"),
        ("get", "secrets"),
        ("get", "configmaps"),
        ("delete", "nodes"),
        ("update", "nodes/status"),
    ],
)
def test_the_account_may_not(node: Cluster, right: tuple[str, str]) -> None:
    assert not node.agent_may(*right)


def test_the_account_may_what_it_needs(node: Cluster) -> None:
    """So the question above is asked in the right way."""
    assert node.agent_may("patch", "nodes/status")
    assert node.agent_may("create", "events.events.k8s.io")


def test_agent_and_helper_are_small_when_everything_is_on(node: Cluster) -> None:
    """Also after the first scrape: under 60 MiB of memory that the kernel counts as theirs (PSS)."""
    if not node.own:
        pytest.skip("the memory of a process is read on the node")
    for path in ("metrics", "report.json", "healthz", "metrics"):
        node.agent_http(path)
    parts = {name: node.pids_of(node.component(name)) for name in ("agent", "hardware")}
    pss = {name: memory(pids).pss for name, pids in parts.items()}
    print(f"PSS in MiB: {pss}")

    assert sum(pss.values()) < 60, pss


def _server(cluster: Cluster) -> str:
    server: str = json.loads(cluster.kubectl("config", "view", "-o", "json"))["clusters"][0]["cluster"][
        "server"
    ]
    return server

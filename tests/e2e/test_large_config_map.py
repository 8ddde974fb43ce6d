"""A ConfigMap of policies that is nearly as large as the API server takes (1 MiB)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster, Json

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
NAME = "large-policies"
REPLICAS = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: %d}\n"
SIZE = 900 * 1024


def _config_map(data: dict[str, str]) -> Json:
    metadata = {"name": NAME, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _padded(text: str, size: int) -> str:
    """With comments, to so many bytes."""
    line = "# " + 76 * "-" + "\n"
    return text + line * ((size - len(text)) // len(line))


def _replace(cluster: Cluster, data: dict[str, str]) -> None:
    """Without the annotation of ``kubectl apply``, which would hold all of it once more."""
    made = cluster.json(_config_map(data))
    cluster.kubectl("create", "-f", "-", stdin=made, check=False)
    cluster.kubectl("replace", "-f", "-", stdin=made)


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Cluster]:
    """300 named policies, and the one that is in force."""
    cluster.kubectl("create", "namespace", NAMESPACE, check=False)
    many = {f"policy-{number}": _padded(REPLICAS % (2 + number % 8), SIZE // 300) for number in range(300)}
    _replace(cluster, {**many, "default": REPLICAS % 2})
    with cluster.with_chart(hardware={"machine": MACHINE}, config={"name": NAME}):
        yield cluster
        cluster.choose(None)
    cluster.kubectl("delete", "configmap", NAME, "-n", NAMESPACE)


def test_many_policies_or_a_long_one(node: Cluster) -> None:
    node.until_allocatable({SHARED: 8})
    agent = node.component("agent")["metadata"]["name"]
    node.choose("policy-299")
    node.until_allocatable({SHARED: 4 * (2 + 299 % 8)})
    node.choose(None)
    node.until_allocatable({SHARED: 8})
    _replace(node, {"default": _padded(REPLICAS % 3, SIZE)})

    def taken_or_refused() -> bool:
        policy = node.report()["policy"]
        return node.allocatable().get(SHARED) == 12 or bool(policy["problems"])

    node.until("the long one is in force, or it is said why not", taken_or_refused)
    offered = node.allocatable()[SHARED]
    assert offered == 12 or "default" in str(node.report()["policy"]["problems"])
    _replace(node, {"default": REPLICAS % 4})
    node.until_allocatable({SHARED: 16})
    (status,) = node.get("pod", "-n", NAMESPACE, agent)["status"]["containerStatuses"]
    assert status["restartCount"] == 0

"""NVIDIA's plugin (a stand-in) is swapped for Partage and back under 20 running pods, on a real kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import GPU, Cluster, Json
from tests.e2e.nvidia import LABEL, exchange, install_beside, nvidia_plugin
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("own", "tenants")

CASE = "ts10"
PODS = 20


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    """NVIDIA's plugin with 80 shares, 20 pods, and the agent beside it, which registers nothing."""
    with nvidia_plugin(cluster, CASE):
        cluster.until_allocatable_count(GPU, 80)
        cluster.apply(*(pod(f"p{number}", {GPU: 1}) for number in range(PODS)))
        for number in range(PODS):
            cluster.until_phase(f"p{number}", "Running", timeout_s=120)
        install_beside(cluster, CASE)
        yield cluster
        cluster.uninstall()


def _tenants(node: Cluster) -> dict[str, tuple[Any, ...]]:
    """Each pod's UID, its container and how often that was restarted."""
    found: dict[str, tuple[Any, ...]] = {}
    for one in node.get("pods", "-l", "partage-e2e=tenant")["items"]:
        (status,) = one["status"]["containerStatuses"]
        found[one["metadata"]["name"]] = (
            one["metadata"]["uid"],
            status["containerID"],
            status["restartCount"],
            one["status"]["phase"],
        )
    return found


def _row(node: Cluster) -> Json:
    rows: list[Json] = node.report()["resources"]
    return next(row for row in rows if row["name"] == GPU)


def test_20_pods_keep_containers_and_ids_through_takeover_and_handback(node: Cluster, tmp_path: Path) -> None:
    """Scenario 17, too: beside NVIDIA's plugin, the agent registers nothing and says so."""
    node.until("the agent says why it waits", lambda: "other-plugin" in node.unready())
    before, held = _tenants(node), node.kubelet_holds()
    assert (len(before), len(held), len(set().union(*held.values()))) == (PODS, PODS, PODS)

    said = exchange(node, "takeover", tmp_path)
    assert "80 ids listed now, 20 held by 20 pods; 80 offered by Partage" in said
    assert node.get("node", node.node)["metadata"]["labels"][LABEL] == "false"
    assert _row(node)["registered"]
    node.until_allocatable_count(GPU, 80)
    assert (_tenants(node), node.kubelet_holds()) == (before, held)
    node.until("the ledger knows all pods", lambda: node.ledger() == held)
    node.apply(pod("new", {GPU: 1}))
    node.until_phase("new", "Running")
    assert not node.shares("new")["new"] & set().union(*held.values())
    node.kubectl("delete", "pod", "new", "--grace-period=0", "--force")
    node.until("its share is free again", lambda: node.ledger() == held)

    said = exchange(node, "handback", tmp_path)
    assert "done: the kubelet asks NVIDIA's plugin" in said
    node.until_allocatable_count(GPU, 80)
    assert (_tenants(node), node.kubelet_holds()) == (before, held)
    assert not _row(node)["registered"]
    node.apply(pod("newer", {GPU: 1}))
    node.until_phase("newer", "Running")
    assert "PARTAGE_SHARES" not in node.environment("newer"), "NVIDIA's plugin has given it"


def test_handback_says_whom_the_kubelet_really_asks(node: Cluster, tmp_path: Path) -> None:
    """A kubelet of 1.37 that was asked to register a living socket twice goes on asking Partage."""
    exchange(node, "takeover", tmp_path)
    node.until("Partage is registered", lambda: _row(node)["registered"])
    node.register_again(GPU)
    said = exchange(node, "handback", tmp_path, check=False)
    node.until_allocatable_count(GPU, 80)
    for number in range(2):
        node.apply(pod(f"last-{number}", {GPU: 1}))
        node.until_phase(f"last-{number}", "Running")
        nvidia = "PARTAGE_SHARES" not in node.environment(f"last-{number}")
        assert nvidia or "done" not in said, said

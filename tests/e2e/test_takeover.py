"""NVIDIA's plugin (a stand-in) is swapped for Partage and back under 20 running pods, on a real kubelet."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Json
from tests.e2e.tenants import pod
from tests.nvidia_plugin import NvidiaPlugin, recording

pytestmark = pytest.mark.usefixtures("tenants")

GPU = "nvidia.com/gpu"
CASE = "ts10"
PODS = 20
LABEL = "nvidia.com/gpu.deploy.device-plugin"
PLUGIN = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"name": "nvidia-device-plugin-ds"}},
        "template": {
            "metadata": {"labels": {"name": "nvidia-device-plugin-ds"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "nvidia-device-plugin-ctr",
                        "image": "docker.io/library/busybox:local",
                        "command": ["/pause"],
                    }
                ],
            },
        },
    },
}
"""As NVIDIA's static manifest. The stand-in runs here, and only while a pod of it does."""


class StandIn:
    """The stand-in for NVIDIA's plugin: it starts and ends with the pod of its DaemonSet."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._plugin = NvidiaPlugin(cluster.path_on_node("/var/lib/kubelet/device-plugins"), "h100", CASE)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _wanted(self) -> bool:
        pods = self._cluster.get("pods", "-n", "kube-system", "-l", "name=nvidia-device-plugin-ds")["items"]
        return any(
            one["status"]["phase"] == "Running" and "deletionTimestamp" not in one["metadata"] for one in pods
        )

    async def _run(self) -> None:
        try:
            while not self._stop.is_set():
                wanted = await asyncio.to_thread(self._wanted)
                if wanted != self._plugin.running:
                    await (self._plugin.start() if wanted else self._plugin.stop())
                await asyncio.sleep(0.2)
        finally:
            await self._plugin.stop()


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    """NVIDIA's plugin with 80 shares, 20 pods, and the agent beside it, which registers nothing."""
    if cluster.folder is None:
        pytest.skip("the stand-in for NVIDIA's plugin listens in the kubelet's directory of an own cluster")
    found = recording("h100")
    machine = cluster.folder / "h100.json"
    machine.write_text(json.dumps(found["machine"]))
    policy = json.dumps({"version": "v1", **found["cases"][CASE]["config"]})
    cluster.apply(PLUGIN)
    with StandIn(cluster):
        cluster.until_allocatable_count(GPU, 80)
        cluster.apply(*(pod(f"p{number}", {GPU: 1}) for number in range(PODS)))
        for number in range(PODS):
            cluster.until_phase(f"p{number}", "Running", timeout_s=120)
        cluster.install(
            wait=False,  # beside another plugin the agent is not ready
            hardware={"machine": f"/driver-root{machine}"},
            config={"map": {"default": policy}},
        )
        yield cluster
        cluster.uninstall()
        cluster.kubectl("delete", "daemonset", "-n", "kube-system", PLUGIN["metadata"]["name"], check=False)  # type: ignore[index]
    cluster.kubectl("label", "node", cluster.node, f"{LABEL}-", check=False)


def _verb(node: Cluster, verb: str, state: Path, *, check: bool = True) -> str:
    places = [
        f"--kubelet-dir={node.path_on_node('/var/lib/kubelet/device-plugins')}",
        f"--run-dir={node.path_on_node('/run/partage')}",
        f"--state-dir={state}",
    ]
    where = ["--cluster", f"--kubeconfig={node.kubeconfig}", f"--node-name={node.node}", "--wait=60"]
    return node.run(sys.executable, "-m", "partage", verb, *places, *where, check=check)


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

    said = _verb(node, "takeover", tmp_path)
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

    said = _verb(node, "handback", tmp_path)
    assert "done: the kubelet asks NVIDIA's plugin" in said
    node.until_allocatable_count(GPU, 80)
    assert (_tenants(node), node.kubelet_holds()) == (before, held)
    assert not _row(node)["registered"]
    node.apply(pod("newer", {GPU: 1}))
    node.until_phase("newer", "Running")
    assert "PARTAGE_SHARES" not in node.environment("newer"), "NVIDIA's plugin has given it"


def test_handback_says_whom_the_kubelet_really_asks(node: Cluster, tmp_path: Path) -> None:
    """A kubelet of 1.37 that was asked to register a living socket twice goes on asking Partage."""
    _verb(node, "takeover", tmp_path)
    node.until("Partage is registered", lambda: _row(node)["registered"])
    node.register_again(GPU)
    said = _verb(node, "handback", tmp_path, check=False)
    node.until_allocatable_count(GPU, 80)
    for number in range(2):
        node.apply(pod(f"last-{number}", {GPU: 1}))
        node.until_phase(f"last-{number}", "Running")
        nvidia = "PARTAGE_SHARES" not in node.environment(f"last-{number}")
        assert nvidia or "done" not in said, said

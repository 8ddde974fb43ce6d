"""The lines of ``docs/how-to/install-in-a-cluster.md``, as they are written there, on a fresh cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import ROOT, Cluster

PAGE = ROOT / "docs" / "how-to" / "install-in-a-cluster.md"
WITHOUT_GPU = "--set hardware.machine=4xa100-40gb --set affinity=null"
WIDE = (
    "namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "customresourcedefinitions,priorityclasses,runtimeclasses,mutatingwebhookconfigurations"
)
INSIDE = (
    "all,configmaps,secrets,serviceaccounts,roles,rolebindings,leases,networkpolicies,poddisruptionbudgets"
)
NOT_OF_KUBERNETES = "--field-selector=metadata.namespace!=kube-system,metadata.namespace!=kube-node-lease"
"""The kubelet makes the Lease of its Node some seconds after the Node."""
FOLDERS = ("/var/lib/partage", "/run/partage", "/var/run/cdi", "/var/lib/kubelet/device-plugins", "/dev")
OURS = re.compile(r"nvidia\.com/|partage\.dev/|Partage")


@pytest.fixture
def fresh(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.run("helm", "uninstall", "partage", "--namespace", "partage", "--wait", check=False)
    cluster.kubectl("label", "node", cluster.node, "nvidia.com/device-plugin.config-", check=False)
    cluster.kubectl("delete", "namespace", "partage", check=False)
    if cluster.own:
        cluster.empty("/var/lib/partage")


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def _lines(cluster: Cluster) -> list[str]:
    """The commands after the image is built and pushed, with the names of this cluster."""
    build, push, *lines = [line.removeprefix("$ ") for line in _blocks("console")[0].splitlines()]
    assert (build.split()[:2], push.split()[:2]) == (["make", "image"], ["docker", "push"])
    repository, _, tag = cluster.image.rpartition(":")
    image = f"image.repository={repository} --set image.tag={tag}"
    return [
        line.replace("image.repository=registry.example.com/partage --set image.tag=0.1.0", image).replace(
            "NODE ", f"{cluster.node} "
        )
        for line in lines
    ]


def _removal() -> tuple[str, str]:
    """The command that removes the release, and what the page says of what stays after it."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Remove\n")[2].partition("\n## ")[0]
    (command,) = re.findall(r"`(helm uninstall [^`]*)`", section)
    return command, section


def _left(cluster: Cluster) -> dict[str, Any]:
    """Everything that an installation could leave behind."""
    node = cluster.get("node", cluster.node)
    found: dict[str, Any] = {
        "objects": set(cluster.kubectl("get", WIDE, "-o", "name").split()),
        "inside": set(cluster.kubectl("get", INSIDE, "-n", "partage", "-o", "name").split()),
        "labels": {key for key in node["metadata"]["labels"] if OURS.search(key)},
        "annotations": {key for key in node["metadata"].get("annotations", {}) if OURS.search(key)},
        "conditions": {one["type"] for one in node["status"]["conditions"] if OURS.search(one["type"])},
        "taints": {one["key"] for one in node["spec"].get("taints", [])},
        "leases": set(cluster.kubectl("get", "leases", "-A", NOT_OF_KUBERNETES, "-o", "name").split()),
    }
    if cluster.own:
        files = cluster.on_node("find", *FOLDERS, "-not", "-path", "/dev/*/*").splitlines()
        found["files"] = {path for path in files if not path.endswith("kubelet_internal_checkpoint")}
    return found


def test_the_page_has_the_lines_and_the_words_that_are_looked_for() -> None:
    """Without a cluster: a page that was written anew fails here, and not only in ``make e2e``."""
    lines = _lines(Cluster(Path("none"), "example.com/partage:1", None, "node1"))
    assert [line.split()[:2] for line in lines] == [
        ["kubectl", "create"],
        ["helm", "install"],
        ["kubectl", "-n"],
        ["kubectl", "get"],
        ["kubectl", "label"],
    ]
    assert len(_blocks("yaml")) >= 1
    _says_what_stays()


def _says_what_stays() -> None:
    stays = _removal()[1]
    for word in ("/var/lib/partage", "/run/partage", "labels", "conditions", "namespace"):
        assert word in stays, word


def test_five_lines_install_it_and_its_removal_leaves_what_the_page_names(
    fresh: Cluster, tmp_path: Path
) -> None:
    cluster = fresh
    for key in [key for key in cluster.get("node", cluster.node)["metadata"]["labels"] if OURS.search(key)]:
        cluster.kubectl("label", "node", cluster.node, f"{key}-")  # of tests before this one
    before = _left(cluster)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "policies.yaml").write_text(_blocks("yaml")[0])

    def line(command: str) -> str:
        return cluster.run("sh", "-c", f"cd {tmp_path} && {command}")

    namespace, install, pods, nodes, label = _lines(cluster)
    line(namespace)
    line(f"{install} {WITHOUT_GPU}")
    cluster.until_allocatable_count("nvidia.com/gpu", 4)
    assert line(pods).count("Running") == 2, line(pods)
    assert re.search(rf"^{cluster.node} +4 +(<none>|0)$", line(nodes), re.MULTILINE), line(nodes)
    line(label)
    cluster.until_allocatable_count("nvidia.com/gpu.shared", 16)
    assert re.search(rf"^{cluster.node} +0 +16$", line(nodes), re.MULTILINE), line(nodes)

    upgrade = install.replace("helm install", "helm upgrade") + " --set agent.logLevel=debug"
    line(f"{upgrade} {WITHOUT_GPU}")
    line("kubectl -n partage rollout status daemonset/partage-agent --timeout=60s")
    cluster.until_allocatable_count("nvidia.com/gpu.shared", 16)

    line(f"{_removal()[0]} --wait")
    cluster.until("its pods are gone", lambda: not cluster.get("pods", "-n", "partage")["items"])
    cluster.until("nothing is offered", lambda: not any(cluster.allocatable().values()))
    after = _left(cluster)
    cluster.kubectl("label", "node", cluster.node, "nvidia.com/device-plugin.config-")
    assert after["objects"] - before["objects"] == {"namespace/partage"}
    assert after["inside"] <= {"configmap/kube-root-ca.crt", "serviceaccount/default"}
    for kind in ("annotations", "taints", "leases"):
        assert after[kind] == before[kind], kind
    assert after["labels"] > before["labels"]
    assert after["conditions"] == {"PartageReady", "PartageGpusHealthy", "PartagePolicyInForce"}
    if cluster.own:
        new = after["files"] - before["files"]
        assert all(path.startswith(("/var/lib/partage", "/run/partage")) for path in new), new
    _says_what_stays()

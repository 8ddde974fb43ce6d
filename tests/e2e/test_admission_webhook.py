"""Pods of other systems, as they are, on a real Kubernetes: the webhook lets them in as pods with claims."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.e2e.claims import DRIVER, devices, make_device_files, remove_installed, skip_without_claims
from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster, Json
from tests.e2e.tenants import pod
from tests.e2e.webhook import GIB, NAME, as_made, check_gpu, create, created, names_of_templates, replicas

POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0, 1]}, via: claims, mps: {unit: 1Gi}}
  - {select: {index: [2]}, via: claims, time-slicing: {unit: 1Gi}}
  - {select: rest, exclusive: {}}
"""
THEIRS = "runai-scheduler-default"
"""The Deployment of a scheduler of another system."""


def theirs() -> dict[str, tuple[Json, int]]:
    """A pod of each system, and the bytes that it has to get of its GPU."""
    hami = pod("hami", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30})
    volcano = pod(
        "volcano", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 2048}, schedulerName="volcano"
    )
    kai = pod("kai", {}, schedulerName="kai-scheduler")
    kai["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    kai["metadata"]["labels"] |= {"kai.scheduler/queue": "team"}
    ack = pod("ack", {"aliyun.com/gpu-mem": 5})
    return {
        "hami": (hami, 3 * GIB),
        "volcano": (volcano, 2 * GIB),
        "kai": (kai, 19 * GIB),
        "ack": (ack, 5 * GIB),
    }


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    skip_without_claims(cluster)
    labels = {"app": "theirs"}
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": THEIRS, "namespace": "kube-public"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "main", "image": "none"}]},
                },
            },
        }
    )
    cluster.install(
        hardware={"machine": MACHINE},
        config={"map": {"default": POLICY}},
        cdi={"enabled": True},
        dra={"enabled": True},
        admission={"enabled": True},
    )
    try:
        cluster.until("slices of three GPUs", lambda: len(devices(cluster)) == 3)
        make_device_files(cluster)
        yield cluster
    finally:
        cluster.kubectl("delete", "deployment", THEIRS, "-n", "kube-public", check=False)
        remove_installed(cluster)


def metrics(cluster: Cluster) -> list[str]:
    """Of all replicas."""
    lines = []
    for one in replicas(cluster):
        place = f"/api/v1/namespaces/{NAMESPACE}/pods/https:{one['metadata']['name']}:9403/proxy/metrics"
        lines += cluster.kubectl("get", "--raw", place).splitlines()
    return lines


def answered(cluster: Cluster) -> float:
    """Reviews that came to any replica."""
    rows = [line for line in metrics(cluster) if line.startswith("partage_admission_seconds_count ")]
    return sum(float(line.split()[-1]) for line in rows)


def holder(cluster: Cluster) -> str:
    """The name of the pod that leads."""
    lease = cluster.get("lease", NAME, "-n", NAMESPACE)
    return str(lease["spec"].get("holderIdentity", "")).rpartition("_")[0]


def test_pods_of_four_systems_run_while_a_replica_is_killed(node: Cluster) -> None:
    node.until("a leader", lambda: holder(node) in {one["metadata"]["name"] for one in replicas(node)})
    said = {}
    for number, (name, (document, _)) in enumerate(theirs().items()):
        if number == 2:  # the one that leads
            node.kubectl(
                "delete", "pod", holder(node), "-n", NAMESPACE, "--grace-period=0", "--force", check=False
            )
        # A request under way to the one that was killed fails; whoever makes pods tries again.
        said[name] = node.until(f"{name} is let in", partial(created, node, document))
    assert "the queue" not in said["hami"]
    assert "kai.scheduler/queue: team is kept" in said["kai"]
    for name, (_, memory_bytes) in theirs().items():
        node.until_phase(name, "Running", timeout_s=120)
        check_gpu(node, name, memory_bytes)
    node.until("another leads", lambda: holder(node) in {one["metadata"]["name"] for one in replicas(node)})
    node.until("two replicas", lambda: len(replicas(node)) == 2)


def test_what_cannot_be_is_refused_when_it_is_made(node: Cluster) -> None:
    wrong = pod("wrong", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 99_000})
    said = create(node, wrong)
    assert 'admission webhook "admission.partage.dev" denied the request: the pod is written for HAMi' in said
    assert f"no node could ever hold memory 99000Mi of {DRIVER}" in said
    assert "{select: rest, via: claims, mps: {unit: 1Gi}}" in said
    gang = pod("gang", {"volcano.sh/vgpu-number": 1})
    gang["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "g"}
    assert "whose pods start together or not at all" in create(node, gang)


def test_other_pods_never_come_to_it_and_a_dry_run_writes_nothing(node: Cluster) -> None:
    node.remove_tenants()
    before = answered(node)
    for name, limits in {"plain": {}, "whole": {"nvidia.com/gpu": 1}}.items():
        assert "created" in create(node, pod(name, limits))
    left_alone = theirs()["hami"][0]
    left_alone["metadata"] |= {"name": "alone"}
    left_alone["metadata"]["labels"] |= {"partage.dev/admission": "ignore"}
    assert "created" in create(node, left_alone)
    assert answered(node) == before
    dry = pod("dry", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 7777})
    assert "created (server dry run)" in create(node, dry, "--dry-run=server")
    assert answered(node) > before
    templates = node.get("resourceclaimtemplates")["items"]
    asked = [str(one["spec"]) for one in templates]
    assert not any("7777Mi" in text for text in asked)
    node.remove_tenants()


def asking(name: str, limits: dict[str, int], **more: Any) -> Json:
    made = pod(name, limits, **{key: value for key, value in more.items() if key != "annotations"})
    made["metadata"]["annotations"] = more.get("annotations", {})
    return made


@pytest.mark.parametrize(
    "document",
    [
        asking("hami-by-mark", {"nvidia.com/gpu": 1}, annotations={"nvidia.com/use-gputype": "A100"}),
        asking("hami-percentage", {"nvidia.com/gpumem-percentage": 25}),
        asking("hami-requests", {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 20, "nvidia.com/gpumem": 99}),
        asking("volcano-old", {"volcano.sh/gpu-memory": 1024}),
        asking("kai-memory", {}, annotations={"gpu-memory": "2000"}),
        asking("ack-cores", {"aliyun.com/gpu-mem": 2, "aliyun.com/gpu-core.percentage": 10}),
        asking("nos", {"nvidia.com/gpu-10gb": 1}),
    ],
    ids=lambda document: document["metadata"]["name"],
)
def test_the_api_server_sends_what_is_translated(node: Cluster, document: Json) -> None:
    said = create(node, document, "--dry-run=server", "-o", "json")
    made = as_made(said)
    assert made["metadata"]["annotations"]["partage.dev/translated"]
    assert made["spec"]["resourceClaims"]


def test_a_node_selector_of_gke_is_seen(node: Cluster) -> None:
    selector = {"cloud.google.com/gke-gpu-sharing-strategy": "mps"}
    said = create(node, pod("gke", {"nvidia.com/gpu": 1}, nodeSelector=selector), "--dry-run=server")
    # A device plugin of this cluster lists the name, and so has the pod.
    assert "created" in said
    assert any('dialect="none",result="unchanged"' in line for line in metrics(node))


def test_a_scheduler_that_is_there_is_kept_and_all_rights_are_enough(node: Cluster) -> None:
    document = asking("runai", {}, annotations={"gpu-fraction": "0.5"}, schedulerName="runai-scheduler")
    said = create(node, document, "--dry-run=server", "-o", "json")
    assert as_made(said)["spec"]["schedulerName"] == "runai-scheduler"
    who = f"system:serviceaccount:{NAMESPACE}:{NAME}"
    for verb, kind in {"list": "pods", "delete": "resourceclaimtemplates"}.items():
        assert node.kubectl("auth", "can-i", verb, kind, "-A", "--as", who, check=False).endswith("yes\n")
    for one in replicas(node):
        log = node.kubectl("logs", "-n", NAMESPACE, one["metadata"]["name"])
        assert "is not permitted" not in log
        assert "Traceback" not in log


def test_uninstalled_no_pod_is_refused_and_pods_run_on(node: Cluster) -> None:
    document, memory_bytes = theirs()["hami"]
    assert "created" in create(node, document)
    node.until_phase("hami", "Running")
    check_gpu(node, "hami", memory_bytes)
    (pid,) = node.pids_of(node.pod("hami"))
    (mine,) = {one["resourceClaimTemplateName"] for one in node.pod("hami")["spec"]["resourceClaims"]}
    assert mine in names_of_templates(node)
    ended, refused = threading.Event(), list[str]()
    made = threading.Thread(target=_keep_making, args=(node, ended, refused))
    made.start()
    try:
        node.run("helm", "uninstall", "partage", "-n", NAMESPACE, "--wait")
    finally:
        ended.set()
        made.join()
    assert refused == []
    node.until("templates are gone", lambda: not names_of_templates(node))
    assert _lives(pid)
    assert node.pod("hami")["status"]["phase"] == "Running"


def _lives(pid: int) -> bool:
    return subprocess.run(["kill", "-0", str(pid)], check=False).returncode == 0


def _keep_making(cluster: Cluster, ended: threading.Event, refused: list[str]) -> None:
    number = 0
    while not ended.is_set():
        number += 1
        document: Any = theirs()["hami"][0]
        document["metadata"]["name"] = f"meanwhile-{number}"
        said = create(cluster, document)
        if not re.search(r"\bcreated\b", said):
            refused.append(said)

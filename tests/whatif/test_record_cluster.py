"""``partage record --cluster`` against an API server that keeps objects, and what is then simulated."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path
from typing import Any

import pytest

from partage.admission.decide.settings import DialectSettings
from partage.cli.main import run
from partage.units import GIB, MIB
from partage.whatif.cluster_objects import ClusterObjects, read_cluster
from tests.agent.test_cluster import _kubeconfig
from tests.edges.kube.scripted import status
from tests.edges.kube.store import NODES, SLICES, ObjectStore, claims_path, object_store, pods_path
from tests.explain.test_explain_cluster import a_node, a_pod
from tests.scheduler.objects import claim, classes, device, slices

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
PRODUCT = "NVIDIA A100-SXM4-80GB"
GFD = {
    "nvidia.com/gpu.product": "Tesla-T4-SHARED",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.memory": "15360",
    "nvidia.com/gpu.replicas": "4",
}
HAMI = '[{"id":"GPU-1","count":10,"devmem":24576,"type":"NVIDIA L4","health":true}]'
SIZE = 80 * GIB


def made(name: str, node: str, limits: dict[str, Any], at: str = "10:00:00", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = a_pod(name, node, limits, more.pop("phase", "Running"), **more.pop("status", {}))
    found["metadata"] |= {"creationTimestamp": f"2026-03-01T{at}Z", **more.pop("meta", {})}
    found["spec"] |= more
    return found


def claiming(name: str) -> dict[str, Any]:
    return {"resourceClaims": [{"name": "g", "resourceClaimName": name}]}


def fill(store: ObjectStore) -> None:
    """A node by claims, one in time slices, one of HAMi's, one without GPUs, and one that is cordoned."""
    for one in classes():
        store.put(CLASSES, one)
    roomy = {"cpu": "32", "memory": "128Gi"}
    store.put(NODES, a_node("claims", roomy))
    store.put(SLICES, slices("claims", [device(gpu, PRODUCT, memory=SIZE) for gpu in range(2)]))
    store.put(NODES, a_node("sliced", {**roomy, "nvidia.com/gpu": "8"}, labels=GFD))
    said = {"hami.io/node-nvidia-register": HAMI}
    store.put(NODES, a_node("hami", {**roomy, "nvidia.com/gpu": "10"}, annotations=said))
    store.put(NODES, a_node("plain", roomy))
    store.put(NODES, a_node("closed", {**roomy, "nvidia.com/gpu": "4"}, unschedulable=True))
    claims = claims_path("team")
    store.put(claims, claim("has", 1, SIZE // 4, given={"claims": ["gpu-0"]}, consumed={"memory": SIZE // 4}))
    store.put(claims, claim("wants", 1, SIZE // 2))
    store.put(claims, claim("nic", device_class="nic.example.com"))
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-01T10:00:09Z"}
    ended = {"name": "main", "state": {"terminated": {"finishedAt": "2026-03-01T11:00:05Z"}}}
    owned = {"ownerReferences": [{"kind": "DaemonSet", "uid": "u", "controller": True}]}
    whole, hami = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6144"}
    for pod in (
        made("by-claim", "claims", {"cpu": "4"}, **claiming("has")),
        made("beside", "claims", {"cpu": "1"}, "10:00:01", **claiming("has")),
        made("waits", "", {"cpu": "2"}, "10:00:02", **claiming("wants")),
        made("slice", "sliced", whole, "10:00:03", status={"conditions": [bound]}),
        made("part", "hami", hami, "10:00:04"),
        made("done", "hami", whole, "10:00:05", phase="Succeeded", status={"containerStatuses": [ended]}),
        made("web", "sliced", {"cpu": "500m", "memory": "1Gi"}, "10:00:06"),
        made("other", "plain", {"cpu": "1"}, "10:00:07"),
        made("network", "", {"cpu": "1"}, "10:00:08", **claiming("nic")),
        made("exporter", "sliced", {"cpu": "2"}, "10:00:09", meta=owned),
    ):
        pod["metadata"]["namespace"] = "team"
        store.put(pods_path("team"), pod)


async def recording(store: ObjectStore, folder: Path, *more: str) -> int:
    config = f"--kubeconfig={_kubeconfig(folder, store.server.url)}"
    return await asyncio.to_thread(run, ["record", "--cluster", config, "--to", str(folder / "rec"), *more])


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return [*csv.DictReader(file)]


async def test_a_cluster_of_several_systems_is_recorded_and_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with object_store() as store:
        fill(store)
        assert await recording(store, tmp_path) == 0
        assert {request.method for request in store.server.requests} == {"GET"}
    said = capsys.readouterr().err
    nodes = rows(tmp_path / "rec" / "NODES.csv")
    assert [(row["sn"], row["cpu_milli"], row["gpu"], row["model"]) for row in nodes] == [
        ("node-1", "32000", "2", "NVIDIA-A100-SXM4-80GB"),
        ("node-2", "32000", "1", "NVIDIA-L4"),
        ("node-3", "30000", "2", "Tesla-T4"),
    ]
    pods = rows(tmp_path / "rec" / "PODS.csv")
    keys = ("num_gpu", "gpu_milli", "gpu_spec", "creation_time", "scheduled_time", "deletion_time", "node")
    assert [tuple(row[key] for key in keys) for row in pods] == [
        ("1", "250", "NVIDIA-A100-SXM4-80GB", "0", "0", "", "node-1"),
        ("0", "0", "", "1", "1", "", "node-1"),
        ("1", "500", "NVIDIA-A100-SXM4-80GB", "2", "", "", ""),
        ("1", "250", "Tesla-T4", "3", "9", "", "node-3"),
        ("1", "250", "NVIDIA-L4", "4", "4", "", "node-2"),
        ("1", "1000", "NVIDIA-L4", "5", "5", "3605", "node-2"),
        ("0", "0", "", "6", "6", "", "node-3"),
    ]
    assert (pods[6]["cpu_milli"], pods[6]["memory_mib"]) == ("500", "1024")
    for words in (
        "NODES.csv: 3 nodes with 5 GPUs",
        "PODS.csv: 7 pods, 1 waiting and 1 that ended",
        "left out: 1 node cordoned",
        "left out: 1 node without a GPU",
        "left out: 1 pod on a node that is not recorded",
        "left out: 1 pod waiting and asking for no GPU",
        "not quite: 1 pod sharing a claim with another pod",
    ):
        assert words in said, said
    files = ["--trace", str(tmp_path / "rec" / "PODS.csv"), "--nodes", str(tmp_path / "rec" / "NODES.csv")]
    ways = ["--placement", "today", "--placement", "stock"]
    assert run(["simulate", *files, *ways, "-o", "json"]) == 0
    today, stock = json.loads(capsys.readouterr().out)["placements"]
    # Three pods that run ask for three quarters of a GPU, of five.
    assert next(iter(today["allocation"].items())) == ("15", 15)
    assert next(iter(stock["allocation"])) == "0"


OLD_HAMI = (
    "GPU-1,10,40960,100,NVIDIA-NVIDIA A100-PCIE-40GB,0,true,0,hami-core:GPU-2,10,40960,100,x,0,true,1,:"
)
ACK = {f"aliyun.accelerator/nvidia_{key}": value for key, value in
       (("count", "4"), ("name", "Tesla-V100-SXM2-16GB"), ("mem", "16160MiB"))}  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "annotations", "units", "wanted"),
    [
        (GFD, {}, 8, ("Tesla-T4", 2, 15360)),
        ({**GFD, "nvidia.com/gpu.memory": "much"}, {}, 8, ("Tesla-T4", 2, 15360)),  # as the catalogue has it
        (ACK, {}, 0, ("Tesla-V100-SXM2-16GB", 4, 16160)),
        ({}, {"hami.io/node-nvidia-register": OLD_HAMI}, 20, ("NVIDIA-A100-PCIE-40GB", 2, 40960)),
        ({}, {"hami.io/node-nvidia-register": "[{"}, 4, ("GPU", 4, 0)),
        ({}, {}, 4, ("GPU", 4, 0)),
        ({"nvidia.com/gpu.count": "0"}, {}, 0, None),
    ],
)
def test_what_says_which_gpus_a_node_has(
    labels: dict[str, str], annotations: dict[str, str], units: int, wanted: tuple[str, int, int] | None
) -> None:
    amounts = {"nvidia.com/gpu": str(units)} if units else {}
    node = a_node("n", amounts, labels=labels, annotations=annotations)
    found = read_cluster(ClusterObjects([node], []), DialectSettings())
    if wanted is None:
        assert (found.nodes, found.left_out) == ((), {"without a GPU": 1})
        return
    (gpus,) = found.nodes
    assert (gpus.model, gpus.gpus, round(gpus.gpu_bytes / MIB, -1)) == (*wanted[:2], round(wanted[2], -1))


async def test_without_claims_and_without_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with object_store() as store:
        store.refuse = lambda request: (
            status(404, "NotFound", "the server could not find the requested resource")
            if "resource.k8s.io" in request.path
            else None
        )
        store.put(NODES, a_node("n1", {"nvidia.com/gpu": "2"}))
        assert await recording(store, tmp_path, "--keep-names") == 0
        assert rows(tmp_path / "rec" / "NODES.csv")[0]["sn"] == "n1"
        assert (tmp_path / "rec" / "PODS.csv").read_text().count("\n") == 1
        store.remove(NODES, "n1")
        store.put(NODES, a_node("n2", {}))
        capsys.readouterr()
        assert await recording(store, tmp_path) == 3
        assert (
            "no node of the cluster has GPUs that pods can get: 1 node without a GPU"
            in capsys.readouterr().err
        )


async def test_who_may_not_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with object_store() as store:
        store.refuse = lambda request: status(403, "Forbidden", 'nodes is forbidden: User "u" cannot list')
        assert await recording(store, tmp_path) == 5
    assert "cannot list" in capsys.readouterr().err
    assert not (tmp_path / "rec").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster"], "--cluster needs --to FOLDER"),
        (["--cluster", "--to", "-"], "--cluster needs --to FOLDER"),
        (["--cluster", "--to", "x", "-o", "json"], "--cluster goes without --machine and --output"),
        (["--keep-names"], "--keep-names goes with --cluster"),
    ],
)
def test_options_that_do_not_go_together(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["record", *words]) == 2
    assert said in capsys.readouterr().err

"""Pods of other systems on a real Kubernetes while much happens at once: the sum of the shares of each GPU is
never over its memory, as a watch of all claims sees it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.claim_sums import ClaimSums, watched_sums
from tests.e2e.claims import DRIVER, devices, make_device_files, remove_installed, skip_without_claims
from tests.e2e.cluster import NAMESPACE, Cluster, Json
from tests.e2e.tenants import deployment, pod
from tests.e2e.webhook import GIB, TRANSLATED, check_gpu, create, names_of_templates, replicas

UNITS = 39
"""GiB of a GPU that are offered."""
POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0, 1]}, via: claims, mps: {unit: 1Gi}}
  - {select: rest, via: claims, time-slicing: {unit: 1Gi}}
"""
HAMI_GPU, HAMI_MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
SLOT = "example.com/slot"
"""A resource of the node of which there is one, so that two pods cannot both run."""
PARTS = ("capacity", "allocatable")


@pytest.fixture(scope="module")
def machine(cluster: Cluster) -> Path:
    skip_without_claims(cluster)
    assert cluster.folder is not None
    return cluster.folder / "machine.json"


@pytest.fixture(scope="module")
def node(cluster: Cluster, machine: Path) -> Iterator[Cluster]:
    write_machine(machine, "the-first-boot")
    cluster.install(
        hardware={"machine": f"/driver-root{machine}"},
        config={"map": {"default": POLICY}},
        cdi={"enabled": True},
        dra={"enabled": True},
        admission={"enabled": True},
    )
    try:
        cluster.until("slices of four GPUs", lambda: len(devices(cluster)) == 4)
        make_device_files(cluster)
        yield cluster
    finally:
        remove_installed(cluster)


@pytest.fixture(scope="module")
def watched(node: Cluster) -> Iterator[ClaimSums]:
    with watched_sums(node) as sums:
        yield sums


@pytest.fixture(autouse=True)
def sums(node: Cluster, watched: ClaimSums) -> Iterator[ClaimSums]:
    """Of the whole module; what a test has made is removed after it."""
    yield watched
    node.remove_tenants()
    node.until("nothing is held", lambda: not holding(node))
    assert watched.wrong == []


def write_machine(path: Path, boot_id: str) -> None:
    path.write_text(json.dumps({"bootId": boot_id, "gpus": [{"name": "NVIDIA A100-SXM4-40GB"}] * 4}))


def holding(cluster: Cluster) -> list[Json]:
    """Claims that have an allocation."""
    found = cluster.get("resourceclaims")["items"]
    return [claim for claim in found if "allocation" in claim.get("status", {})]


def asks(gib: int) -> dict[str, int]:
    return {HAMI_GPU: 1, HAMI_MEMORY: gib * 1024}


def let_in(cluster: Cluster, *documents: Json) -> None:
    """As a controller does: try again while the webhook is away."""
    for document in documents:
        name = document["metadata"]["name"]
        cluster.until(f"{name} is let in", lambda: is_made(cluster, document), 120)  # noqa: B023 - asked at once


def is_made(cluster: Cluster, document: Json) -> bool:
    """The answer to an earlier try may have been lost."""
    said = create(cluster, document)
    assert re.search(r"\bcreated\b|AlreadyExists", said), said
    return True


def at_once(cluster: Cluster, documents: list[Json]) -> None:
    makers = [threading.Thread(target=let_in, args=(cluster, document)) for document in documents]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()


def kill(cluster: Cluster, pods: list[Json]) -> None:
    names = [one["metadata"]["name"] for one in pods]
    cluster.kubectl("delete", "pods", *names, "-n", NAMESPACE, "--grace-period=0", "--force")


def test_ten_equal_pods_at_once(node: Cluster, sums: ClaimSums) -> None:
    """Three find a place on each GPU. The GPU that the claim names is the one in the container."""
    names = [f"equal-{number}" for number in range(10)]
    at_once(node, [pod(name, asks(12)) for name in names])
    for name in names:
        node.until_phase(name, "Running", timeout_s=120)
        check_gpu(node, name, 12 * GIB)
    assert max(sums.most_bytes.values()) == 36 * GIB
    assert len({gpu for row in node.given() for gpu in row.gpus}) == 4


@pytest.mark.parametrize("killed", ["one", "both"])
def test_the_webhook_is_killed_in_the_middle(node: Cluster, killed: str) -> None:
    """Pods that come meanwhile are refused or right, and never let in as they are."""
    names = [f"{killed}-{number}" for number in range(8)]
    living = replicas(node)
    making = threading.Thread(target=at_once, args=(node, [pod(name, asks(9)) for name in names]))
    making.start()
    kill(node, living[:1] if killed == "one" else living)
    making.join()
    for name in names:
        node.until_phase(name, "Running", timeout_s=120)
        check_gpu(node, name, 9 * GIB)
    node.until("both are back", lambda: len([one for one in replicas(node) if is_ready(one)]) == 2, 90)


def is_ready(found: Json) -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in found["status"].get("conditions", [])
    )


def test_the_api_server_is_killed_in_the_middle(node: Cluster) -> None:
    names = [f"away-{number}" for number in range(8)]
    making = threading.Thread(target=at_once, args=(node, [pod(name, asks(13)) for name in names]))
    making.start()
    node.stop_api_server()
    node.start_api_server()
    making.join()
    for name in names:
        node.until_phase(name, "Running", timeout_s=120)
        check_gpu(node, name, 13 * GIB)


def test_an_init_container_and_two_containers_with_gpus(node: Cluster) -> None:
    """The init container uses what the first container has afterwards; the second has its own."""
    document = pod("several", asks(20), asks(7))
    first = document["spec"]["containers"][0]
    document["spec"]["initContainers"] = [
        first
        | {
            "name": "before",
            "command": ["sh", "-c", "echo $PARTAGE_GPUS $PARTAGE_MEMORY_BYTES $PARTAGE_SHARES"],
        }
    ]
    let_in(node, document)
    node.until_phase("several", "Running", timeout_s=120)
    before = node.kubectl("logs", "several", "-c", "before").split()
    main, second = (node.environment("several", name) for name in ("main", "c1"))
    assert before == [main[f"PARTAGE_{key}"] for key in ("GPUS", "MEMORY_BYTES", "SHARES")]
    assert int(main["PARTAGE_MEMORY_BYTES"]) == 20 * GIB
    assert int(second["PARTAGE_MEMORY_BYTES"]) == 7 * GIB
    assert main["PARTAGE_SHARES"] != second["PARTAGE_SHARES"]
    published = devices(node)
    results = [row for claim in holding(node) for row in claim["status"]["allocation"]["devices"]["results"]]
    held = sorted(published[row["device"]]["attributes"]["uuid"]["string"] for row in results)
    assert held == sorted([main["PARTAGE_GPUS"], second["PARTAGE_GPUS"]])


@pytest.mark.parametrize(
    ("annotations", "gpus"),
    [
        ({"nvidia.com/use-gputype": "A100,V100"}, 2),
        ({"nvidia.com/nouse-gputype": "1080,2080"}, 2),
        ({"nvidia.com/nouse-gpuuuid": "GPU-03f69c50-207a-2038-9b45-23cac89cb67d"}, 2),
        ({"nvidia.com/use-gpuuuid": "one that is there"}, 1),
    ],
    ids=["use-gputype", "nouse-gputype", "nouse-gpuuuid", "use-gpuuuid"],
)
def test_gpus_that_the_pod_names(node: Cluster, annotations: dict[str, str], gpus: int) -> None:
    """A claim really is made: the API server judges its expressions. Two GPUs are none that MPS shares."""
    uuids = {device["attributes"]["uuid"]["string"] for device in devices(node).values()}
    (named,) = sorted(uuids)[:1]
    annotations = {key: named if text == "one that is there" else text for key, text in annotations.items()}
    document = pod("named", {HAMI_GPU: gpus, HAMI_MEMORY: 1024})
    document["metadata"]["annotations"] = annotations
    let_in(node, document)
    node.until_phase("named", "Running", timeout_s=120)
    given = set(node.environment("named")["PARTAGE_GPUS"].split(","))
    assert len(given) == gpus
    assert gpus == 2 or given == {named}


@pytest.fixture
def urgent(node: Cluster) -> Iterator[str]:
    """A PriorityClass."""
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    node.apply({**head, "metadata": {"name": "urgent"}, "value": 1000})
    yield "urgent"
    node.kubectl("delete", "priorityclass", "urgent")


@pytest.fixture
def slot(node: Cluster) -> Iterator[None]:
    """One ``SLOT`` on the node, which says nothing of it afterwards: other modules compare what it offers."""
    paths = [f"/status/{part}/{SLOT.replace('/', '~1')}" for part in PARTS]

    def change(op: str) -> None:
        patch = node.json([{"op": op, "path": path, "value": "1"} for path in paths])
        node.kubectl("patch", "node", node.node, "--subresource=status", "--type=json", "-p", patch)

    change("add")
    yield
    change("remove")


@pytest.mark.usefixtures("slot")
def test_a_pod_of_a_higher_priority_takes_the_place_of_one(node: Cluster, urgent: str) -> None:
    """The claim of the one that has to go goes with it."""
    let_in(node, pod("low", asks(30) | {SLOT: 1}))
    node.until_phase("low", "Running", timeout_s=120)
    let_in(node, pod("high", asks(30) | {SLOT: 1}, priorityClassName=urgent))
    node.until_phase("high", "Running", timeout_s=120)
    check_gpu(node, "high", 30 * GIB)
    assert node.events("Preempted", "low")
    node.until("its claim is gone", lambda: len(holding(node)) == 1)


def test_for_a_device_of_a_claim_nobody_has_to_go(node: Cluster, sums: ClaimSums, urgent: str) -> None:
    """kube-scheduler does not do it: the pod waits until one ends."""
    names = [f"low-{number}" for number in range(4)]
    at_once(node, [pod(name, asks(UNITS)) for name in names])
    for name in names:
        node.until_phase(name, "Running", timeout_s=120)
    let_in(node, pod("high", asks(UNITS), priorityClassName=urgent))
    said = node.until("it waits", lambda: node.events("FailedScheduling", "high"))
    assert "Preemption is not helpful" in said[-1], said
    assert [node.phases()[name] for name in names] == ["Running"] * 4
    node.kubectl("delete", "pod", names[0], "--wait")
    node.until_phase("high", "Running", timeout_s=120)
    check_gpu(node, "high", UNITS * GIB)
    assert max(sums.most_bytes.values()) == UNITS * GIB


def test_a_quota_counts_devices_and_not_their_memory(node: Cluster) -> None:
    """What Kubernetes has: so many devices of a class. Its quota for ``nvidia.com/gpumem`` counts what pods
    ask for in that name, which pods that were translated do not.
    """
    counted, memory = f"{DRIVER}.deviceclass.resource.k8s.io/devices", f"requests.{HAMI_MEMORY}"
    spec = {"hard": {counted: "2", memory: "1"}}
    node.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": spec})
    names = [f"counted-{number}" for number in range(3)]
    try:
        node.until("the quota is counted", lambda: node.get("resourcequota", "gpus")["status"]["used"])
        let_in(node, *(pod(name, asks(2)) for name in names))

        def over() -> list[str]:
            return [text for name in names for text in node.events("FailedResourceClaimCreation", name)]

        said = node.until("one claim is over it", over)
        assert "exceeded quota: gpus" in said[-1], said
        two = ["Pending", "Running", "Running"]
        node.until("two of them run", lambda: sorted(node.phases().values()) == two, 120)
        used = node.get("resourcequota", "gpus")["status"]["used"]
        assert (used[counted], used[memory]) == ("2", "0")
    finally:
        node.kubectl("delete", "resourcequota", "gpus")


def test_300_replicas_are_rolled_over(node: Cluster, sums: ClaimSums) -> None:
    """16 of them find a place. None is refused; the one template stays under them."""
    document = deployment("many", 300, asks(9))
    document["spec"]["template"]["metadata"]["labels"]["generation"] = "first"
    document["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}
    let_in(node, document)

    def full(generation: str) -> bool:
        found = node.get("pods", "-l", f"app=many,generation={generation}")["items"]
        living = [one for one in found if "deletionTimestamp" not in one["metadata"]]
        running = [one for one in living if one["status"]["phase"] == "Running"]
        assert (len(living), len(running)) == (300, 16), (len(living), len(running))
        assert all(TRANSLATED in one["metadata"]["annotations"] for one in living)
        return True

    for generation in ("first", "second"):
        if generation == "second":
            labels = {"spec": {"template": {"metadata": {"labels": {"generation": generation}}}}}
            node.kubectl("patch", "deployment", "many", "-p", node.json(labels))
        node.until(f"all of the {generation} are there", lambda: full(generation), 170)  # noqa: B023 - asked at once
        templates = {
            claim["resourceClaimTemplateName"]
            for one in node.get("pods", "-l", "app=many")["items"]
            for claim in one["spec"]["resourceClaims"]
        }
        assert len(templates) == 1
        assert templates <= names_of_templates(node)
    for one in node.get("replicasets", "-l", "app=many")["items"]:
        name = one["metadata"]["name"]
        assert node.events("FailedCreate", name) == []
    assert max(sums.most_bytes.values()) <= UNITS * GIB


def test_the_node_is_rebooted(node: Cluster, machine: Path) -> None:
    """The kubelet starts anew, ``/run/partage`` is empty: the pods get what their claims name, again."""
    let_in(node, deployment("stays", 4, asks(20)))
    node.until_running("stays", 4)
    before = node.until_running("stays", 4)
    claims = {claim["metadata"]["uid"]: claim["status"]["allocation"] for claim in holding(node)}
    node.stop_node()
    write_machine(machine, "the-second-boot")
    node.restart_kubelet()
    node.until("the boot is seen", lambda: node.report()["node"]["bootId"] == "the-second-boot", 120)
    make_device_files(node)
    names = node.until_running("stays", 4, 150, since=before.values())
    for name in names:
        check_gpu(node, name, 20 * GIB)
    node.nothing_is_given_twice()
    same = [claim for claim in holding(node) if claim["metadata"]["uid"] in claims]
    assert all(claim["status"]["allocation"] == claims[claim["metadata"]["uid"]] for claim in same)


def test_nothing_was_over_the_memory_of_a_gpu(watched: ClaimSums) -> None:
    """Of all of the above."""
    print(f"changes of claims: {watched.changes}; most: {sorted(watched.most_bytes.values())}")
    assert watched.changes > 600
    assert watched.wrong == []

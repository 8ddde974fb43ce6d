"""Shares by ResourceClaim, through the real scheduler, API server, kubelet and containerd; no GPU.

The CDI specs of a simulated node reach no container runtime by default; the cluster of these tests reads
them, and has device files that stand for GPUs.
"""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from partage.cli.main import run
from tests.doc_blocks import blocks_of
from tests.e2e.claims import (
    DRIVER,
    EVEN,
    SHARE_CONFIG,
    WHOLE,
    claimed,
    claiming,
    devices,
    make_device_files,
    mig,
    part,
    refused,
    remove_claims,
    skip_without_claims,
    template,
)
from tests.e2e.cluster import MACHINE, NAMESPACE, ROOT, Cluster, Json
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("tenants", "claims")

POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, mps: {unit: 1Gi}}
  - {select: {index: [1]}, via: claims, time-slicing: {replicas: 4}}
  - {select: {index: [2]}, via: claims, mig: {layout: [3g.20gb, 2g.10gb, 1g.5gb]}}
  - {select: rest, exclusive: {}}
"""
UNITS = 39
OTHER = "team-b"
EXTENDED = "example.com/whole-gpu"
"""No device plugin lists it."""
PAGE = ROOT / "docs" / "how-to" / "share-by-claim.md"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    skip_without_claims(cluster)
    cluster.kubectl("create", "namespace", OTHER, check=False)
    cluster.install(
        hardware={"machine": MACHINE},
        config={"map": {"default": POLICY}},
        cdi={"enabled": True},
        dra={"enabled": True, "extendedResources": {EXTENDED: DRIVER}},
    )
    try:
        cluster.until("slices of three GPUs", lambda: len(devices(cluster)) == 5)
        make_device_files(cluster)
        yield cluster
    finally:
        cluster.uninstall()


@pytest.fixture
def claims(node: Cluster) -> Iterator[None]:
    """Removes the claims and templates that a test made, after its pods."""
    yield
    remove_claims(node, claimed, "default", OTHER)


def agents_token(cluster: Cluster) -> tuple[str, str]:
    """The API server's address, and a token for the agent's pod, which names the node."""
    agent = cluster.component("agent")["metadata"]["name"]
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", agent)
    token = cluster.kubectl("create", "token", "partage-agent", "-n", NAMESPACE, *bound).strip()
    return cluster.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"), token


def explained(cluster: Cluster, capsys: pytest.CaptureFixture[str], name: str) -> Json:
    """What ``partage explain`` says of a pod that waits, of the only node."""
    capsys.readouterr()
    code = run(["explain", "pod", f"default/{name}", f"--kubeconfig={cluster.kubeconfig}", "-o", "json"])
    (found,) = json.loads(capsys.readouterr().out)["pods"]
    (there,) = found["nodes"]
    assert code == (0 if there["fits"] else 1)
    return {**there, "standing": found["standing"]}


def test_parts_of_one_gpu_in_two_namespaces(node: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    ours = claiming("first", "ten")
    theirs = claiming("second", "twenty", namespace=OTHER)
    node.apply(template("ten", part("10Gi", 25)), template("twenty", part("20Gi"), namespace=OTHER))
    node.apply(ours, theirs)
    node.until_phase("first", "Running")
    environment = node.environment("first")
    assert environment["PARTAGE_MEMORY_BYTES"] == str(10 << 30)
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert environment["CUDA_MPS_PIPE_DIRECTORY"].endswith("/pipe")
    assert "/dev/nvidia0" in node.kubectl("exec", "first", "--", "find", "/dev", "-name", "nvidia[0-9]")
    node.until(
        "the second runs",
        lambda: node.get("pod", "second", "-n", OTHER)["status"]["phase"] == "Running",
    )
    assert len(claimed(node)) == 2

    node.apply(template("whole", WHOLE), claiming("whole", "whole"))
    assert "cannot allocate all claims" in refused(node, "whole")
    waits = explained(node, capsys, "whole")
    assert "cannot allocate all claims" in waits["standing"]
    assert (
        f"has {UNITS - 30}Gi of {UNITS}Gi of memory left, {UNITS}Gi is asked for" in waits["reason"]["text"]
    )
    # As the scheduler has it: after the two have ended, the pod runs.
    changes = [change["text"] for change in waits["changes"]]
    assert changes == [f"wait until pods {OTHER}/second, default/first have ended, or end it"]
    assert waits["enough"]
    node.kubectl("delete", "pod", "first", "--wait")
    node.kubectl("delete", "pod", "second", "-n", OTHER, "--wait")
    node.until_phase("whole", "Running", timeout_s=90)
    assert node.environment("whole")["PARTAGE_MEMORY_BYTES"] == str(UNITS << 30)
    node.apply(claiming("late", "ten"))
    refused(node, "late")


def test_the_examples_of_the_page_run(node: Cluster) -> None:
    """With an image and a profile that are here."""
    shown = {block.file_name: block.text.replace("3g.40gb", "3g.20gb") for block in blocks_of(PAGE)}
    objects = [
        found
        for name in ("part.yaml", "best.yaml", "together.yaml")
        for found in yaml.safe_load_all(shown[name])
    ]
    for found in objects:
        if found["kind"] == "Pod":
            base = pod("any", {})["spec"]
            for container in found["spec"]["containers"]:
                container |= {
                    key: base["containers"][0][key] for key in ("image", "imagePullPolicy", "command")
                }
            found["spec"]["terminationGracePeriodSeconds"] = 0
            found["metadata"]["labels"] = {"partage-e2e": "tenant"}
    node.apply(*objects)
    for name in ("part", "best", "trainer", "watcher"):
        node.until_phase(name, "Running")
    part_of_it = node.environment("part")
    assert part_of_it["PARTAGE_MEMORY_BYTES"] == str(10 << 30)
    assert part_of_it["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert node.environment("best")["PARTAGE_GUARANTEE"] == "hard"
    common = {
        node.environment(name, container)["PARTAGE_SHARES"]
        for name, container in (("trainer", "main"), ("trainer", "viewer"), ("watcher", "main"))
    }
    assert len(common) == 1


def test_an_extended_resource_is_a_whole_gpu_by_a_claim(node: Cluster) -> None:
    node.apply(pod("limits", {EXTENDED: 1}), pod("waits", {EXTENDED: 1}))
    running = node.until("one of them runs", lambda: [n for n, p in node.phases().items() if p == "Running"])
    environment = node.environment(running[0])
    assert environment["PARTAGE_MEMORY_BYTES"] == str(UNITS << 30)
    assert EXTENDED not in node.allocatable()
    (other,) = {"limits", "waits"} - {*running}
    assert refused(node, other)


def test_four_even_shares_and_no_fifth(node: Cluster) -> None:
    node.apply(template("even", EVEN), *(claiming(f"even-{number}", "even") for number in range(5)))

    def settled() -> list[str]:
        phases = node.phases()
        running = [name for name, phase in phases.items() if phase == "Running"]
        assert len(running) == 4, phases
        return running

    running = node.until("four pods run", settled)
    shares = [node.environment(name)["PARTAGE_SHARES"] for name in running]
    assert len(set(shares)) == 4


def test_a_mig_device_by_its_profile_and_the_next_best(node: Cluster) -> None:
    hard, soft = mig("3g.20gb", name="hard"), {"name": "soft", **part("10Gi")["exactly"]}
    best = {"name": "gpu", "firstAvailable": [hard, soft]}
    node.apply(template("best", best), claiming("first", "best"))
    node.until_phase("first", "Running")
    assert node.environment("first")["PARTAGE_GUARANTEE"] == "hard"
    node.apply(claiming("second", "best"))
    node.until_phase("second", "Running")
    assert node.environment("second")["PARTAGE_MEMORY_BYTES"] == str(10 << 30)


def test_what_a_claim_needs_and_does_not_get_is_said_in_its_pods_events(
    node: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**SHARE_CONFIG, "need": "hard"}
    node.apply(template("strict", EVEN, config=config), claiming("strict", "strict"))
    said = node.until("it is refused", lambda: node.events("FailedPrepareDynamicResources", "strict"))
    assert "needs memory that is hard" in said[-1]
    capsys.readouterr()
    assert run(["explain", "pod", "default/strict", f"--kubeconfig={node.kubeconfig}"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "It does not start: FailedPrepareDynamicResources: " in out
    assert "needs memory that is hard" in out


def test_time_slices_are_one_claims_and_the_next_one_waits_for_its_end(node: Cluster) -> None:
    """A pod that was deleted by force holds its claim until it has ended."""
    long, short = ({**SHARE_CONFIG, "interval": interval} for interval in ("long", "short"))
    node.apply(template("long", EVEN, config=long), template("short", EVEN, config=short))
    node.apply(claiming("long", "long"))
    node.until_phase("long", "Running")
    node.apply(claiming("short", "short"))
    said = node.until("it is refused", lambda: node.events("FailedPrepareDynamicResources", "short"))
    assert re.search(r"of which claim default/long-\S+ has long", said[-1])
    node.kubectl("delete", "pod", "long", "--force", "--grace-period=0")
    node.until_phase("short", "Running")
    (claim,) = (
        one for one in node.get("resourceclaims")["items"] if one["metadata"]["name"].startswith("short")
    )
    (device,) = claim["status"]["devices"]
    assert (device["data"]["means"], device["conditions"][0]["status"]) == ("nothing", "False")


def test_containers_and_pods_share_a_claim(node: Cluster) -> None:
    claim = template("common", part("4Gi"))
    claim |= {"kind": "ResourceClaim", "spec": claim["spec"]["spec"]}
    node.apply(claim, claiming("one", claim="common", containers=2), claiming("two", claim="common"))
    for name in ("one", "two"):
        node.until_phase(name, "Running")
    ids = {node.environment("one", container)["PARTAGE_SHARES"] for container in ("main", "c1")}
    assert ids == {node.environment("two")["PARTAGE_SHARES"]}
    assert claimed(node) == {"default/common"}

    def named() -> bool:
        holders = {
            (holder["pod"], holder["container"])
            for entry in node.report()["held"]
            for holder in entry["holders"]
        }
        return holders == {("one", "main"), ("one", "c1"), ("two", "main")}

    node.until("the kubelet names the three containers", named)


def test_kubelet_and_agent_killed_and_slices_deleted(node: Cluster) -> None:
    node.apply(template("ten", part("10Gi")), claiming("stays", "ten"))
    node.until_phase("stays", "Running")
    before = node.environment("stays")["PARTAGE_SHARES"]
    slices = devices(node)

    node.kubectl("delete", "resourceslices", "--all")
    node.until("the slices are back", lambda: devices(node) == slices, timeout_s=2)
    node.restart_kubelet()
    node.until("the slices are back after the kubelet's start", lambda: devices(node) == slices)
    node.kill_container(node.component("agent"), "agent")
    node.apply(claiming("after", "ten"))
    node.until_phase("after", "Running", timeout_s=120)
    after = node.environment("after")["PARTAGE_SHARES"]
    assert not {*before.split(",")} & {*after.split(",")}
    assert len(claimed(node)) == 2


def test_a_gpu_passes_to_the_device_plugin_and_back(node: Cluster) -> None:
    node.apply(template("whole", WHOLE), claiming("holds", "whole"))
    node.until_phase("holds", "Running")
    by_plugin = POLICY.replace("via: claims, mps: {unit: 1Gi}", "exclusive: {}")
    values = {"hardware": {"machine": MACHINE}, "cdi": {"enabled": True}, "dra": {"enabled": True}}
    node.install(config={"map": {"default": by_plugin}}, wait=False, **values)
    index = {name for name, one in devices(node).items() if one["attributes"]["index"]["int"] == 0}
    (device,) = index
    node.until("the device is tainted", lambda: devices(node)[device].get("taints"), timeout_s=90)
    assert node.allocatable()["nvidia.com/gpu"] == 1
    node.kubectl("delete", "pod", "holds", "--wait")
    node.until("the slices are without it", lambda: device not in devices(node))
    node.until_allocatable({"nvidia.com/gpu": 2})

    node.apply(pod("plugin", {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 1}))
    node.until_phase("plugin", "Running")
    node.install(config={"map": {"default": POLICY}}, wait=False, **values)
    node.until("it waits for the pod", lambda: node.gpus_in("waiting"), timeout_s=90)
    assert device not in devices(node)
    node.kubectl("delete", "pod", "plugin", "--wait")
    node.until("the device is in the slices", lambda: device in devices(node))
    node.until_allocatable({"nvidia.com/gpu": 1})


def test_an_agent_writes_slices_of_its_own_node_and_driver_only(node: Cluster) -> None:
    """With a token for the agent's pod, which names the node; and as its account, without one."""
    server, token = agents_token(node)
    config = ("--kubeconfig", "/dev/null", "--server", server, "--insecure-skip-tls-verify")
    with_token = (*config, "--token", token)
    as_account = ("--as", f"system:serviceaccount:{NAMESPACE}:partage-agent")

    def said(who: tuple[str, ...], *command: str, stdin: Json | None = None) -> str:
        return node.kubectl(*who, *command, stdin=node.json(stdin) if stdin else None, check=False)

    def slice_of(name: str, driver: str = DRIVER) -> Json:
        pool = {"name": f"{name}-tried", "generation": 1, "resourceSliceCount": 1}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "tried"},
            "spec": {"driver": driver, "nodeName": name, "pool": pool},
        }

    everywhere = slice_of("anywhere")
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    create = ("create", "-f", "-")
    for foreign in (slice_of("node9"), everywhere):
        assert "own node only" in said(with_token, *create, stdin=foreign)
    assert "own driver only" in said(with_token, *create, stdin=slice_of(node.node, "gpu.example.com"))
    assert "own node only" in said(as_account, *create, stdin=slice_of(node.node))

    node.kubectl(*create, stdin=node.json(slice_of("node9")))
    try:
        assert "own node only" in said(with_token, "delete", "resourceslice", "tried")
    finally:
        node.kubectl("delete", "resourceslice", "tried")
    for name in [one["metadata"]["name"] for one in node.get("resourceslices")["items"]]:
        assert "deleted" in said(with_token, "delete", "resourceslice", name)
    node.until("its own are back", lambda: devices(node), timeout_s=2)


def test_an_agent_says_of_claims_what_they_have_of_its_own_driver_only(node: Cluster) -> None:
    node.apply(template("even", EVEN), claiming("holds", "even"))
    node.until_phase("holds", "Running")
    (claim,) = node.get("resourceclaims")["items"]
    name = claim["metadata"]["name"]
    (result,) = claim["status"]["allocation"]["devices"]["results"]

    server, token = agents_token(node)
    unverified = ssl._create_unverified_context()  # what is tried is the token's rights

    def tried(status: Json) -> str:
        """The answer to a patch of the claim's status. kubectl would read it first, for which is no right."""
        place = f"{server}/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}/status"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        body = node.json({"status": status}).encode()
        request = urllib.request.Request(place, body, headers, method="PATCH")
        try:
            with urllib.request.urlopen(request, context=unverified, timeout=30) as answer:
                return str(answer.status)
        except urllib.error.HTTPError as error:
            return error.read().decode()

    device = {key: result[key] for key in ("driver", "pool", "device", "shareID") if key in result}
    assert tried({"devices": [device]}) == "200"
    # Changes that are for schedulers: the API server asks for another right, and the agent has it not.
    assert "resourceclaims/binding" in tried({"allocation": None})
    assert "resourceclaims/binding" in tried({"reservedFor": None})


def test_uninstalled_nothing_is_left_of_it(node: Cluster) -> None:
    """The last test of the module: the chart is gone afterwards."""
    node.uninstall()
    classes = {one["metadata"]["name"] for one in node.get("deviceclasses")["items"]}
    assert not any(name.endswith("partage.dev") for name in classes)
    # The kubelet takes a driver's slices away that has been gone for 30 s.
    node.until("no slice is left", lambda: not devices(node), timeout_s=60)
    registry = node.path_on_node("/var/lib/kubelet/plugins_registry")
    assert not [path.name for path in registry.iterdir() if DRIVER in path.name]
    named = re.compile(r"claim|partage")
    specs = node.path_on_node("/var/run/cdi")
    left = [path.name for path in specs.iterdir() if named.search(path.name)] if specs.exists() else []
    assert left == []

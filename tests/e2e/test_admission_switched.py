"""The webhook in a cluster that lives on: switched off and on again, with a certificate of somebody else,
beside tenants who change what it made, and where no device plugin lists GPUs.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from partage.admission.certificates import make_pair
from partage.admission.verb import server_names
from partage.units import parse_quantity
from tests.e2e.claims import devices, make_device_files, remove_installed, skip_without_claims
from tests.e2e.cluster import NAMESPACE, Cluster, Json
from tests.e2e.tenants import deployment, job, pod
from tests.e2e.webhook import GIB, NAME, TRANSLATED, as_made, check_gpu, create, names_of_templates, replicas

POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0, 1]}, via: claims, mps: {unit: 1Gi}}
  - {select: {index: [2]}, via: claims, time-slicing: {replicas: 4}}
  - {select: {index: [3, 4]}, via: claims, time-slicing: {unit: 1Gi}}
  - {select: rest, via: claims, exclusive: {}}
"""
MACHINE = "6xa100-40gb"
SECRET = "their-certificate"
CONFIGURATION = ("mutatingwebhookconfiguration", NAME)
HAMI = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}


def install(cluster: Cluster, **admission: Any) -> None:
    cluster.install(
        hardware={"machine": MACHINE},
        config={"map": {"default": POLICY}},
        cdi={"enabled": True},
        dra={"enabled": True},
        admission={"gpuMemUnit": "MiB", **admission},
    )


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    skip_without_claims(cluster)
    install(cluster, enabled=True)
    try:
        cluster.until("slices of six GPUs", lambda: len(devices(cluster)) == 6)
        make_device_files(cluster)
        yield cluster
    finally:
        remove_installed(cluster)
        cluster.kubectl("delete", "secret", SECRET, "-n", NAMESPACE, check=False)


@pytest.fixture(autouse=True)
def tenants_go(node: Cluster) -> Iterator[None]:
    yield
    node.remove_tenants()


class Making:
    """Pods of HAMi by dry run, and others, one after the other. said: of each, with the time."""

    def __init__(self, cluster: Cluster) -> None:
        self.said: list[tuple[float, str, str]] = []
        self._cluster, self._ended = cluster, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        kinds: Mapping[str, Json] = {"theirs": pod("m", HAMI), "plain": pod("m", {})}
        while not self._ended.is_set():
            for kind, document in kinds.items():
                began_s = time.monotonic()
                said = create(self._cluster, document, "--dry-run=server", "-o", "json")
                self.said.append((began_s, kind, said))

    def refused(self, kind: str) -> list[tuple[float, str]]:
        return [(began_s, said) for began_s, of, said in self.said if of == kind and not is_let_in(said)]

    @contextmanager
    def during(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()


def is_let_in(said: str) -> bool:
    return '"kind": "Pod"' in said


def translated(said: str) -> bool:
    return is_let_in(said) and TRANSLATED in as_made(said)["metadata"].get("annotations", {})


def translates(cluster: Cluster) -> bool:
    return translated(create(cluster, pod("m", HAMI), "--dry-run=server", "-o", "json"))


def test_switched_off_and_on_again(node: Cluster) -> None:
    """Off: nobody is refused, the templates go, pods run on. On: until it serves, the API server lets no pod
    of these systems in; all others never notice.
    """
    assert "created" in create(node, pod("stays", HAMI))
    node.until_phase("stays", "Running", timeout_s=120)
    check_gpu(node, "stays", 3 * GIB)
    pids = node.pids_of(node.pod("stays"))
    assert names_of_templates(node)

    off = Making(node)
    with off.during():
        install(node, enabled=False)
        time.sleep(2)  # what happens to pods afterwards has no event to wait for
    assert off.refused("theirs") == off.refused("plain") == []
    assert translated(off.said[0][2])
    assert not translated([said for _, kind, said in off.said if kind == "theirs"][-1])
    node.until("templates are gone", lambda: not names_of_templates(node), 90)
    assert node.pids_of(node.pod("stays")) == pids

    on = Making(node)
    with on.during():
        install(node, enabled=True)
        ready_s = time.monotonic()
        node.until(
            "it translates",
            lambda: translates(node),
        )
        served_s = time.monotonic()
    assert on.refused("plain") == []
    for began_s, said in on.refused("theirs"):
        assert began_s < served_s, said
        assert "failed calling webhook" in said, said
    late = [said for began_s, kind, said in on.said if kind == "theirs" and began_s > served_s]
    assert all(translated(said) for said in late)
    print(f"refused while switched on: {len(on.refused('theirs'))}; {served_s - ready_s:.1f} s after helm")
    assert node.pids_of(node.pod("stays")) == pids
    assert node.pod("stays")["status"]["phase"] == "Running"
    assert "created" in create(node, pod("later", HAMI))
    node.until_phase("later", "Running", timeout_s=120)
    check_gpu(node, "later", 3 * GIB)


def write_secret(cluster: Cluster) -> bytes:
    """As cert-manager would; the authority."""
    pair, authority = make_pair(server_names(NAME, NAMESPACE), time.time())
    texts = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}}
    cluster.apply({**secret, "type": "kubernetes.io/tls", "data": data})
    return authority.certificate.encode()


def bundles(cluster: Cluster) -> set[bytes]:
    rows = cluster.get(*CONFIGURATION)["webhooks"]
    return {base64.b64decode(row["clientConfig"].get("caBundle", "")) for row in rows}


@pytest.mark.slow
def test_a_certificate_of_somebody_else_and_its_renewal(node: Cluster) -> None:
    """Nobody starts it anew: the kubelet writes the new files, and the API server is told."""
    renewed = authority = write_secret(node)
    install(node, enabled=True, existingSecret=SECRET)
    try:
        node.until("the API server trusts it", lambda: bundles(node) == {authority}, 90)
        node.until(
            "a pod is let in",
            lambda: translates(node),
        )
        assert f"{NAME}-tls" not in node.kubectl("get", "secrets", "-n", NAMESPACE)
        before = {one["metadata"]["uid"] for one in replicas(node)}
        renewed = write_secret(node)
        assert renewed != authority
        node.until("the API server trusts the new one", lambda: bundles(node) == {renewed}, 240)
        node.until(
            "a pod is let in",
            lambda: translates(node),
            120,
        )
        assert {one["metadata"]["uid"] for one in replicas(node)} == before
    finally:
        install(node, enabled=True)
        node.until("its own is trusted", lambda: not bundles(node) & {authority, renewed, b""}, 120)


@pytest.mark.parametrize("mark", ["kai.scheduler/batch-min-member", "scheduling.volcano.sh/group-min-member"])
def test_what_makes_pods_that_start_together_is_refused_when_it_is_made(node: Cluster, mark: str) -> None:
    for document in (job("together", 2, 2, HAMI), deployment("together", 2, HAMI)):
        document["metadata"]["annotations"] = {mark: "2"}
        said = create(node, document)
        assert 'admission webhook "makers.admission.partage.dev" denied the request: its pods are' in said
        assert f"{mark} wants pods that start together or not at all" in said
    alone = job("alone", 1, 1, {})
    alone["metadata"]["annotations"] = {mark: "2"}
    assert "created" in create(node, alone)


def test_a_tenant_can_take_only_from_himself(node: Cluster) -> None:
    """Its marks on a pod are words; a template at the name of ours is compared; one that is gone is made
    anew for the next pod, and whoever has a claim already keeps it.
    """
    marked = pod("marked", HAMI)
    marked["metadata"]["annotations"] = {
        TRANSLATED: "HAMi: main nvidia.com/gpu=9",
        "partage.dev/guarantee": "main: memory hard",
        "scheduling.volcano.sh/queue-name": "té\u202eam\n\x1b[31m" + "x" * 5000,
    }
    said = create(node, marked, "-o", "json")
    assert "Warning: scheduling.volcano.sh/queue-name: t" in said
    assert not {"\u202e", "\x1b"} & {*said.partition("{")[0]}
    made = as_made(said)
    assert made["metadata"]["annotations"]["partage.dev/guarantee"] == (
        "main: memory as PARTAGE_GUARANTEE in the container says"
    )
    (claim,) = made["spec"]["resourceClaims"]
    template = claim["resourceClaimTemplateName"]
    node.until_phase("marked", "Running", timeout_s=120)

    node.kubectl("delete", "resourceclaimtemplate", template)
    assert node.pod("marked")["status"]["phase"] == "Running"
    request: Json = {"name": "gpu", "exactly": {"deviceClassName": "gpu.partage.dev"}}
    other = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": template, "labels": {"partage.dev/made-for": "pods"}},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    node.apply(other)
    said = create(node, pod("other", HAMI))
    assert f"the ResourceClaimTemplate {template} of the namespace has another content" in said
    assert f"kubectl -n default delete resourceclaimtemplate {template}" in said
    patch = {"spec": {"spec": {"devices": {"requests": [{**request, "exactly": {"deviceClassName": "x"}}]}}}}
    changed = node.kubectl(
        "patch", "resourceclaimtemplate", template, "--type=merge", "-p", node.json(patch), check=False
    )
    assert "field is immutable" in changed
    node.kubectl("delete", "resourceclaimtemplate", template)
    assert "created" in create(node, pod("other", HAMI))
    node.until_phase("other", "Running", timeout_s=120)
    check_gpu(node, "other", 3 * GIB)


def test_pods_that_would_keep_others_waiting_are_refused_at_once(node: Cluster) -> None:
    """60 containers with amounts of their own are let in, within the time that the API server gives."""
    many = pod("many", *({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100 + n} for n in range(60)))
    began_s = time.monotonic()
    said = create(node, many, "--dry-run=server", "-o", "json")
    assert len(as_made(said)["spec"]["resourceClaims"]) == 60, said
    said = create(node, many)
    assert "created" in said, said
    took_s = time.monotonic() - began_s
    too_many = pod("too-many", *({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9} for _ in range(100)))
    assert "ask for 100 GPUs or parts of them together, and 64 are the most" in create(node, too_many)
    print(f"60 claims: {took_s:.1f} s twice")


def test_an_ephemeral_container_and_a_change_of_a_pod_are_not_concerned(node: Cluster) -> None:
    assert "created" in create(node, pod("stays", HAMI))
    node.until_phase("stays", "Running", timeout_s=120)
    before = node.pod("stays")["spec"]["resourceClaims"]
    image = "docker.io/library/busybox:local"
    node.kubectl("debug", "stays", f"--image={image}", "--image-pull-policy=IfNotPresent", "--", "true")
    node.kubectl("annotate", "pod", "stays", "gpu-fraction=0.5")
    after = node.pod("stays")
    assert after["spec"]["ephemeralContainers"]
    assert after["spec"]["resourceClaims"] == before


@pytest.mark.parametrize(
    ("strategy", "clients"), [("time-sharing", "4"), ("mps", "4"), ("time-sharing", "2")], ids=str
)
def test_pods_of_gke_where_no_device_plugin_lists_gpus(node: Cluster, strategy: str, clients: str) -> None:
    """As Google's pages have them: a Deployment whose pods name how GPUs are shared."""
    selector = {
        "cloud.google.com/gke-gpu-sharing-strategy": strategy,
        "cloud.google.com/gke-max-shared-clients-per-gpu": clients,
    }
    if clients == "2":  # no GPU of the policy is shared by so few
        said = create(node, pod("gke", {"nvidia.com/gpu": 1}, nodeSelector=selector))
        assert "no node could ever hold" in said
        return
    document = deployment("gke", 3, {"nvidia.com/gpu": 1}, nodeSelector=selector)
    assert "created" in create(node, document)
    node.until_running("gke", 3, 120)
    for one in node.get("pods", "-l", "app=gke")["items"]:
        assert TRANSLATED in one["metadata"]["annotations"]
        assert "nodeSelector" not in one["spec"]


def test_gpushares_units_can_be_mib(node: Cluster) -> None:
    """As gpushare's own sample of 16276 means it."""
    assert "created" in create(node, pod("gpushare", {"aliyun.com/gpu-mem": 16276}))
    node.until_phase("gpushare", "Running", timeout_s=120)
    check_gpu(node, "gpushare", 16 * GIB)


@pytest.mark.parametrize(
    ("limits", "gpus", "gib"),
    [
        ({"aliyun.com/gpu-mem": 8192}, 2, 4),
        ({"aliyun.com/gpu-mem": 2048, "aliyun.com/gpu-core.percentage": 30}, 1, 2),
    ],
    ids=["gpu-count", "core.percentage"],
)
def test_pods_of_ack_as_its_pages_have_them(
    node: Cluster, limits: dict[str, int], gpus: int, gib: int
) -> None:
    """An equal part of each of several GPUs; memory and cores."""
    document = pod("ack", limits)
    if gpus > 1:
        document["metadata"]["labels"] |= {"aliyun.com/gpu-count": str(gpus)}
    assert "created" in create(node, document)
    node.until_phase("ack", "Running", timeout_s=120)
    (status,) = node.pod("ack")["status"]["resourceClaimStatuses"]
    claim = node.get("resourceclaim", status["resourceClaimName"])
    given = [row["consumedCapacity"] for row in claim["status"]["allocation"]["devices"]["results"]]
    assert [parse_quantity(row["memory"]) for row in given] == [gib * GIB] * gpus
    assert len(node.environment("ack")["PARTAGE_GPUS"].split(",")) == gpus

"""``partage explain`` for pods with claims: of manifests, of reports, of a cluster."""

import asyncio
import json

import pytest
import yaml
from msgspec.structs import replace

from partage.claims.decide.classes import chart_classes
from partage.claims.decide.devices import claim_devices
from partage.claims.decide.slices import slices_of
from partage.claims.model.names import NVIDIA_NAMES, OWN_NAMES
from partage.claims.model.slices import ServerVersion
from partage.cli.main import run
from partage.codec.values import encode_replacing
from partage.edges.files.catalogue import geometry_of
from partage.model.claim import GpuDemand
from partage.model.gpu import MigMode
from partage.model.ids import ResourceName
from partage.plan.cluster.conditions import node_conditions
from partage.plan.report import DependencyProblems
from tests.answers.reports import a_document, a_report
from tests.claims.offers import amounts, devices, machine
from tests.edges.kube.scripted import Answer, status
from tests.explain.test_explain import explained, texts
from tests.explain.test_explain_cluster import Api, a_node, a_pod
from tests.plan.offers import gpu, node

DRIVER = OWN_NAMES.driver

POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, mps: {unit: 1Gi}}
  - {select: {index: [1]}, via: claims, time-slicing: {replicas: 4}}
  - {select: {index: [2]}, via: claims, mig: {layout: [3g.40gb, 3g.40gb]}}
  - {select: rest, exclusive: {}}
"""
GPU, SHARE, MIG = "gpu.partage.dev", "share.partage.dev", "mig.partage.dev"
PROFILE = f"device.attributes['{DRIVER}'].profile"
API = "resource.k8s.io/v1"


def request(of=GPU, *selectors, name="gpu", **capacity):
    asks = {"deviceClassName": of}
    if selectors:
        asks["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    if capacity:
        asks["capacity"] = {"requests": capacity}
    return {"name": name, "exactly": asks}


def devices_of(*requests, **more):
    return {"devices": {"requests": list(requests), **more}}


def template(*requests, name="t", **more):
    meta = {"name": name, "namespace": "a"}
    spec = {"spec": devices_of(*requests, **more)}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": spec}


def config(**keys):
    parameters = {"apiVersion": "partage.dev/v1", "kind": "ShareConfig", **keys}
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def a_claim(*requests, name="c", **more):
    meta = {"name": name, "namespace": "a"}
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": meta,
        "spec": devices_of(*requests),
        **more,
    }


def pod(*claims, name="new", node="", phase="Pending", limits=None, **more):
    """claims: ``t`` by template, ``=c`` by name."""
    made = a_pod(name, node, limits or {}, phase, **more)
    rows = [
        {"name": f"c{n}", "resourceClaimName": one[1:]}
        if one.startswith("=")
        else {"name": f"c{n}", "resourceClaimTemplateName": one}
        for n, one in enumerate(claims)
    ]
    made["spec"]["resourceClaims"] = rows
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": row["name"]} for row in rows]
    return {"apiVersion": "v1", "kind": "Pod", **made}


def file(tmp_path, *documents):
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return ["--machine", "4xh100-sxm5-80gb", "--policy", str(path)]


# --- manifests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "kind", "reason", "change"),
    [
        (
            [template(request(memory="90Gi"))],
            "no-device-ever",
            "has memory 79Gi in all, 90Gi is asked for",
            "ask for memory: 79Gi in place of 90Gi in request gpu of ResourceClaimTemplate t",
        ),
        (
            [template(request(of="gpu.example.com"))],
            "class-unknown",
            "there is no DeviceClass gpu.example.com; there are gpu.partage.dev",
            "name deviceClassName: gpu.partage.dev in place of gpu.example.com",
        ),
        (
            [template(request(MIG, f"{PROFILE} == '1g.10gb'"))],
            "no-device-ever",
            "it has profile 3g.40gb",
            f"change the expression {PROFILE} == '1g.10gb'",
        ),
        (
            [template(request(GPU, f"{PROFILE} == '3g.40gb'"))],
            "no-device-ever",
            "the device has no profile, and the scheduler then gives the whole pod up",
            "change the expression",
        ),
        (
            [template(request(SHARE, shares="5"))],
            "no-device-ever",
            "has shares 4 in all, 5 is asked for",
            "ask for shares: 4 in place of 5",
        ),
        (
            [],
            "claim-missing",
            "there is no ResourceClaimTemplate t in the namespace a",
            "make the ResourceClaimTemplate t",
        ),
        (
            [template(request(memory="10Gi"), config=[config(need="hard")])],
            "node-refuses-claim",
            "needs memory that is hard, and a share of GPU 0",
            None,
        ),
    ],
    ids=["amount", "class", "profile", "expression that fails", "shares", "no template", "need"],
)
def test_why_a_claim_gets_nothing_of_a_simulated_node(
    capsys, tmp_path, policy, objects, kind, reason, change
):
    code, document = explained(capsys, file(tmp_path, *objects, pod("t")), *policy)
    (node,) = document["pods"][0]["nodes"]
    assert code == 1
    assert (node["reason"]["kind"], node["refusedAtNode"]) == (
        kind,
        kind == "node-refuses-claim",
    )
    assert reason in node["reason"]["text"]
    assert not change or change in texts(node["changes"])[0]


@pytest.mark.parametrize(
    ("objects", "claims", "gets"),
    [
        ([template(request(memory="10Gi", cores="25"))], ["t"], ["(GPU 0): memory 10Gi, cores 25"]),
        ([template(request(memory="1500Mi"))], ["t"], ["(GPU 0): memory 2Gi"]),
        ([a_claim(request(SHARE))], ["=c"], ["(GPU 1): shares 1"]),
        ([template(request(MIG, f"{PROFILE} == '3g.40gb'"))], ["t", "t"], ["(GPU 2): all", "(GPU 2): all"]),
    ],
)
def test_what_a_pod_that_fits_gets(capsys, tmp_path, policy, objects, claims, gets):
    code, document = explained(capsys, file(tmp_path, *objects, pod(*claims)), *policy)
    (node,) = document["pods"][0]["nodes"]
    assert code == 0
    found = [given["text"] for given in node["gives"]]
    assert len(found) == len(gets)
    assert all(part in text for part, text in zip(gets, found, strict=True))
    assert len({given["device"] for given in node["gives"]}) == len(gets)


NVIDIA = NVIDIA_NAMES.driver
NVIDIA_MIG = f"device.attributes['{NVIDIA}'].profile == '3g.40gb'"


def sharing(kind="GpuConfig", strategy="TimeSlicing", **more):
    sharing_ = {"strategy": strategy, **more}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing_}
    return {"opaque": {"driver": NVIDIA, "parameters": parameters}}


@pytest.mark.parametrize(
    ("asked", "gets"),
    [
        (template(request(NVIDIA, memory="10Gi")), "gpu-0: memory 10Gi"),
        (template(request(NVIDIA, shares="2")), "gpu-1: shares 2"),
        (template(request("mig.nvidia.com", NVIDIA_MIG)), "gpu-2-mig-3g40gb-9-"),
        (template(request(NVIDIA, shares="2"), config=[sharing()]), "gpu-1: shares 2"),
    ],
    ids=["amount", "shares", "MIG", "GpuConfig"],
)
def test_manifests_for_nvidias_driver_are_tried_with_its_names(capsys, tmp_path, policy, asked, gets):
    code, document = explained(capsys, file(tmp_path, asked, pod("t")), *policy)
    (node,) = document["pods"][0]["nodes"]
    assert code == 0, node
    (given,) = node["gives"]
    assert given["text"].startswith(gets), given["text"]
    assert any("the driver name that the claims mean: gpu.nvidia.com" in said for said in node["remarks"])


def test_where_the_claims_mean_both_drivers_partages_names_hold(capsys, tmp_path, policy):
    asked = template(request(GPU), request(NVIDIA, name="other"))
    code, document = explained(capsys, file(tmp_path, asked, pod("t")), *policy)
    (node,) = document["pods"][0]["nodes"]
    assert (code, node["reason"]["kind"]) == (1, "class-unknown")
    assert "there is no DeviceClass gpu.nvidia.com" in node["reason"]["text"]


def test_a_pod_with_a_claim_and_a_gpu_by_name(capsys, tmp_path, policy):
    both = pod("t", limits={"nvidia.com/gpu": "1"})
    code, document = explained(capsys, file(tmp_path, template(request(memory="90Gi")), both), *policy)
    (node,) = document["pods"][0]["nodes"]
    why = {gpu["index"]: gpu["reason"] and gpu["reason"]["text"] for gpu in node["gpus"]}
    assert code == 1
    assert why[0] == "has memory 79Gi in all, 90Gi is asked for"
    assert why[3] is None, "it is for the other request, and free"


def test_what_only_the_scheduler_can_say_is_said(capsys, tmp_path, policy):
    hard = template(request(GPU, "['a', 'b'].exists(x, x == device.driver)"))
    code, document = explained(capsys, file(tmp_path, hard, pod("t")), *policy)
    (row,) = document["pods"]
    assert code == 0
    assert "the function exists of 2 values" in row["notJudged"][0]


def test_a_wrong_claim_is_told_with_its_path(capsys, tmp_path, policy):
    wrong = template({"name": "gpu", "exactly": {"deviceClass": GPU}})
    assert run(["explain", file(tmp_path, wrong, pod("t")), *policy]) == 2
    said = capsys.readouterr().err
    assert "[0].spec.spec.devices.requests[0].exactly.deviceClass" in said
    assert "did you mean deviceClassName?" in said


# --- reports ------------------------------------------------------------------------------------------


def test_who_has_it_where_an_agent_reports(capsys, tmp_path):
    holders = [("b", "big", "main")] * 50 + [("b", "small", "main")] * 20
    report = a_report(
        "4xh100-sxm5-80gb",
        POLICY,
        held={ResourceName(GPU): range(70)},
        pods=holders,
        faults={1: 79},
        daemons_serve=True,
    )
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "n1.json").write_bytes(encode_replacing(a_document(report)))
    asked = file(tmp_path, template(request(memory="20Gi")), pod("t"))
    code, document = explained(capsys, asked, "--reports", str(tmp_path / "reports"))
    (node,) = document["pods"][0]["nodes"]
    assert code == 1
    assert node["reason"]["kind"] == "no-device-now"
    assert (
        "has 9Gi of 79Gi of memory left, 20Gi is asked for: held by b/big, b/small" in node["reason"]["text"]
    )
    assert texts(node["changes"]) == ["wait until pod b/small has ended, or end it"]
    assert node["enough"]
    assert "ask for memory: 9Gi in place of 20Gi" in texts(node["others"][0])[0]
    for share, driver in ((request(SHARE), DRIVER), (request(NVIDIA, shares="1"), NVIDIA)):
        asked = file(tmp_path, template(share), pod("t"))
        code, document = explained(capsys, asked, "--reports", str(tmp_path / "reports"))
        (node,) = document["pods"][0]["nodes"]
        assert f"has the taint {driver}/unhealthy" in node["reason"]["text"]
        assert texts(node["changes"]) == ["repair or reset GPU 1; partage show says what is wrong with it"]


# --- a cluster ---------------------------------------------------------------------------------------


CLASSES = [
    {"metadata": {"name": one.name}, "spec": {"selectors": [{"cel": {"expression": one.selectors[0]}}]}}
    for one in chart_classes().values()
]


def a_slice(node, *rows):
    (spec,) = slices_of(devices(*rows), machine(*rows), {}, ServerVersion(1, 37, 2), geometry_of)
    pool = {"name": f"{node}-partage", "generation": 3, "resourceSliceCount": 1}
    return {"metadata": {"name": f"s-{node}"}, "spec": {**spec.to_json(), "nodeName": node, "pool": pool}}


def given_to(claim, node, *pods, device="gpu-00000000", **consumed):
    """The claim, allocated on a node and used by pods."""
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": f"{node}-partage",
        "device": device,
        "shareID": "s",
        "consumedCapacity": consumed,
    }
    reserved = [{"resource": "pods", "name": one, "uid": one} for one in pods]
    return {**claim, "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}}


class ClaimApi(Api):
    """An API server with claims; without them where there are no classes."""

    def __init__(
        self, nodes, pods=(), events=(), *, slices=(), claims=(), classes=CLASSES, version="v1.37.2"
    ):
        super().__init__(nodes, pods, events)
        self.version = version
        self.of_claims = {
            "resourceslices": slices,
            "resourceclaims": claims,
            "resourceclaimtemplates": (),
            "deviceclasses": classes,
        }

    def answer(self, request):
        if request.path == "/version":
            return Answer({"gitVersion": self.version})
        if "/resource.k8s.io/" in request.path:
            if not self.of_claims["deviceclasses"]:
                return status(404, "NotFound", "the server could not find the requested resource")
            return Answer({"metadata": {}, "items": list(self.of_claims[request.path.rpartition("/")[2]])})
        return super().answer(request)


async def of_cluster(capsys, tmp_path, api, *words):
    async with api.served(tmp_path) as config:
        code = await asyncio.to_thread(run, ["explain", *words, config, "-o", "json"])
    return code, json.loads(capsys.readouterr().out)["pods"][0]


async def test_a_pod_that_waits_for_its_claim(capsys, tmp_path):
    part = given_to(a_claim(request(memory="60Gi"), name="part"), "n1", "holder", memory="60Gi", cores="0")
    made = {"resourceClaimStatuses": [{"name": "c0", "resourceClaimName": "new-c0-x7k2"}]}
    said = {"type": "PodScheduled", "status": "False", "message": "cannot allocate all claims"}
    waits = pod("t", **made, conditions=[said])
    api = ClaimApi(
        [a_node("n1", {}), a_node("n2", {})],
        [waits],
        slices=[a_slice("n1", amounts(0))],
        claims=[part, a_claim(request(memory="30Gi"), name="new-c0-x7k2")],
    )
    code, row = await of_cluster(capsys, tmp_path, api, "pod", "a/new")
    assert code == 1
    assert row["standing"] == "The scheduler says: cannot allocate all claims"
    first, second = row["nodes"]
    assert first["name"] == "n1"
    assert (
        "has 19Gi of 79Gi of memory left, 30Gi is asked for: held by claim a/part" in first["reason"]["text"]
    )
    assert texts(first["changes"]) == ["wait until pod a/holder has ended, or end it"]
    assert first["enough"]
    assert first["gpus"][0]["change"]["text"] == "wait until pod a/holder has ended, or end it"
    assert second["reason"]["kind"] == "no-devices-for-claims"
    assert "nothing of the node is published for claims" in second["reason"]["text"]


async def test_all_of_a_gpu_waits_for_the_pods_with_its_mig_devices(capsys, tmp_path):
    """By the counters, which all devices of a GPU on demand use up together."""
    gpus = node(replace(gpu(0), mig_mode=MigMode(current=True, pending=True)))
    places = claim_devices({}, gpus, "n1", geometry_of, OWN_NAMES, on_demand={gpu(0).uuid: GpuDemand()})
    slices = [
        {"metadata": {"name": f"s{number}"}, "spec": spec.to_json()}
        for number, spec in enumerate(slices_of(places, gpus, {}, ServerVersion(1, 37, 2), geometry_of))
    ]
    claims = [
        given_to(a_claim(name=name), "n1", f"pod-{name}", device=f"gpu-00000000-mig-{device}")
        for name, device in (("half", "3g40gb-9-4"), ("small", "1g10gb-19-0"))
    ]
    api = ClaimApi([a_node("n1", {})], slices=slices, claims=claims)
    asked = file(tmp_path, template(request()), pod("t"))
    code, row = await of_cluster(capsys, tmp_path, api, asked)
    (there,) = row["nodes"]
    assert code == 1
    assert (
        "gpu-00000000 (GPU 0) needs 1 of memory-slice-0, of which other devices leave 0 of 1: held by claim "
        "a/small, claim a/half" in there["reason"]["text"]
    )
    assert texts(there["changes"]) == ["wait until pods a/pod-small, a/pod-half have ended, or end it"]
    assert there["enough"]
    beside = f"{PROFILE} == '2g.20gb'"
    code, row = await of_cluster(
        capsys, tmp_path, api, file(tmp_path, template(request(MIG, beside)), pod("t"))
    )
    assert code == 0
    assert row["nodes"][0]["fits"]


async def test_a_claim_that_has_devices_binds_its_pods_to_their_node(capsys, tmp_path):
    shared = given_to(a_claim(request(memory="60Gi")), "n2", "first", memory="60Gi", cores="0")
    api = ClaimApi(
        [a_node("n1", {}), a_node("n2", {})],
        slices=[a_slice("n1", amounts(0)), a_slice("n2", amounts(0))],
        claims=[shared],
    )
    code, row = await of_cluster(capsys, tmp_path, api, file(tmp_path, pod("=c")))
    found = {node["name"]: node["reason"] and node["reason"]["text"] for node in row["nodes"]}
    assert code == 0
    assert found == {
        "n2": None,
        "n1": "ResourceClaim c has devices of the pool n2-partage, and binds its pods to that node",
    }


async def test_a_pod_whose_node_refuses_its_claim(capsys, tmp_path):
    refused = pod("=c", node="n1")
    event = {
        "type": "Warning",
        "reason": "FailedPrepareDynamicResources",
        "message": "claim a/c was given GPU 0, which is held by pod b/x",
        "lastTimestamp": "2026-03-01T09:30:00Z",
    }
    mine = given_to(a_claim(request()), "n1", "new", memory="79Gi", cores="0")
    api = ClaimApi([a_node("n1", {})], [refused], [event], slices=[a_slice("n1", amounts(0))], claims=[mine])
    code, row = await of_cluster(capsys, tmp_path, api, "pod", "a/new")
    assert code == 1
    assert row["standing"].startswith("a/new is on node n1")
    assert row["standing"].endswith("It does not start: FailedPrepareDynamicResources: " + event["message"])


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"classes": ()}, "this cluster does not serve resource.k8s.io/v1"),
        ({"version": "v1.36.3"}, "Kubernetes 1.36.3 gets no ResourceSlices"),
        ({}, "nothing of the node is published for claims"),
    ],
    ids=["no API", "too old", "no slices"],
)
async def test_a_cluster_in_which_no_claim_gets_anything(capsys, tmp_path, more, why):
    api = ClaimApi([a_node("n1", {})], **more)
    asked = file(tmp_path, template(request()), pod("t"))
    code, row = await of_cluster(capsys, tmp_path, api, asked)
    assert code == 1
    assert why in row["nodes"][0]["reason"]["text"]


@pytest.mark.parametrize(
    ("name", "count", "fits"),
    [
        ("nvidia.com/gpu", "1", {"plugin": True, "dra": True, "plain": False}),
        ("nvidia.com/gpu", "2", {"plugin": True, "dra": False, "plain": False}),
        (f"deviceclass.resource.kubernetes.io/{GPU}", "1", {"plugin": True, "dra": True, "plain": False}),
    ],
)
async def test_what_is_asked_for_by_name_comes_from_a_claim_where_no_plugin_lists_it(
    capsys, tmp_path, name, count, fits
):
    """As the scheduler decides it, node by node; a node that lists the name has GPUs for claims in vain."""
    classes = json.loads(json.dumps(CLASSES))
    (whole,) = [one for one in classes if one["metadata"]["name"] == GPU]
    whole["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    api = ClaimApi(
        [a_node("plugin", {name: "2"}), a_node("dra", {name: "0"}), a_node("plain", {})],
        slices=[a_slice("dra", amounts(0))],
        classes=classes,
    )
    asked = file(tmp_path, pod(limits={name: count}))
    _, row = await of_cluster(capsys, tmp_path, api, asked)
    nodes = {node["name"]: node for node in row["nodes"]}
    assert {key: node["fits"] for key, node in nodes.items()} == fits
    assert not nodes["plugin"]["gives"]
    assert "nothing of the node is published for claims" in nodes["plain"]["reason"]["text"]
    if fits["dra"]:
        (given,) = nodes["dra"]["gives"]
        assert (given["request"], given["device"]) == ("container-0-request-0", "gpu-00000000")
    else:
        assert nodes["dra"]["reason"]["text"].startswith(f"request container-0-request-0 (2 x {GPU}): ")


async def test_why_a_node_publishes_nothing_is_what_its_agent_wrote_to_the_node(capsys, tmp_path):
    report = await asyncio.to_thread(a_report, "4xh100-sxm5-80gb", POLICY, faults={}, daemons_serve=True)
    why = "the policy has GPUs for claims, and the agent runs without --dra"
    report = replace(report, dependencies=DependencyProblems(claims=why))
    said = [
        {"type": one.type, "status": str(one.status), "reason": one.reason, "message": one.message}
        for one in node_conditions(report)
    ]
    api = ClaimApi([a_node("n1", {}, conditions=said)])
    asked = file(tmp_path, template(request()), pod("t"))
    code, row = await of_cluster(capsys, tmp_path, api, asked)
    assert (code, row["nodes"][0]["reason"]["text"]) == (1, f"request gpu: {why}")

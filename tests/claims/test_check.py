"""``partage check`` on claims, templates and classes, alone and beside what a policy offers."""

import json

import pytest
import yaml

from partage.claims.model.names import OWN_NAMES
from partage.cli.main import run
from tests.explain.test_explain_claims import (
    GPU,
    MIG,
    NVIDIA,
    NVIDIA_MIG,
    POLICY,
    PROFILE,
    SHARE,
    a_claim,
    config,
    pod,
    request,
    sharing,
    template,
)

DRIVER = OWN_NAMES.driver

MACHINE = ["--machine", "4xh100-sxm5-80gb"]
REQUEST = "spec.spec.devices.requests[0]"
EX = f"{REQUEST}.exactly"
ASKED = f"{EX}.capacity.requests"


@pytest.fixture
def checked(capsys, tmp_path):
    """Exit code and problems of documents. policy: also against that."""

    def check(*documents, policy=None):
        file = tmp_path / "claims.yaml"
        file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
        more = []
        if policy is not None:
            (tmp_path / "policy.yaml").write_text(policy)
            more = ["--policy", str(tmp_path / "policy.yaml"), *MACHINE]
        code = run(["check", "-o", "json", str(file), *more])
        found = json.loads(capsys.readouterr().out)["problems"]
        assert all(problem["file"] == str(file) for problem in found)
        return code, found

    return check


def a_class(name="extra", extended=None, *, modes='["whole", "amounts"]', **spec):
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].mode in {modes}"
    more = {"extendedResourceName": extended} if extended else {}
    spec = {"selectors": [{"cel": {"expression": expression}}], **more, **spec}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def with_exactly(**keys):
    return template({"name": "gpu", "exactly": {"deviceClassName": GPU, **keys}})


OLD = {**template(request()), "apiVersion": "resource.k8s.io/v1beta1"}
NEARLY = {**template(request()), "apiVersion": "resource.k8s.io/v1beta2"}
INLINE = template({"name": "gpu", "deviceClassName": GPU})
SHALLOW = {**template(), "spec": {"devices": {"requests": [request()]}}}


@pytest.mark.parametrize(
    ("document", "path", "message", "hint"),
    [
        (OLD, "apiVersion", "claims are of resource.k8s.io/v1", "apiVersion: resource.k8s.io/v1"),
        (NEARLY, "apiVersion", "newer servers do not have", "apiVersion: resource.k8s.io/v1"),
        (INLINE, f"{REQUEST}.deviceClassName", "stands in the request itself, as in v1beta1", "exactly:"),
        (SHALLOW, "spec.devices", "stand one level deeper", "spec: {spec:"),
        (template(), "spec.spec.devices", "asks for nothing", "has a request"),
        (template({"name": "gpu"}), REQUEST, "needs one of exactly and firstAvailable", "exactly:"),
        (with_exactly(selector=[]), f"{EX}.selector", "unknown key selector", "did you mean selectors?"),
        (with_exactly(count=0), f"{EX}.count", "0 is no number of devices", "1 or more"),
        (
            with_exactly(deviceClassName="gpu.partage.de"),
            f"{EX}.deviceClassName",
            "no DeviceClass gpu.partage.de is known",
            "did you mean gpu.partage.dev?",
        ),
        (template(request(memory="ten")), f"{ASKED}.memory", "'ten' is not an amount", "10Gi of memory"),
        (
            template(request(memmory="10Gi")),
            f"{ASKED}.memmory",
            "nothing of gpu.partage.dev can be",
            "did you mean memory?",
        ),
        (
            template(request(SHARE, memory="10Gi")),
            f"{ASKED}.memory",
            "nothing of share.partage.dev",
            "possible: shares",
        ),
        (template(request(cores="120")), f"{ASKED}.cores", "120 of cores is more than all", "at most 100"),
        (
            template(request(MIG, f"{PROFILE} == '9g.90gb'")),
            f"{EX}.selectors[0]",
            "no known GPU model has a MIG profile 9g.90gb",
            "misprint",
        ),
        (
            template(request(), config=[config(nead="hard")]),
            "spec.spec.devices.config[0].opaque.parameters",
            "nead",
            "",
        ),
        (
            template(request(NVIDIA), config=[sharing(strategy="Sharing")]),
            "spec.spec.devices.config[0].opaque.parameters",
            "a GpuConfig of the claim is wrong",
            "",
        ),
        (a_class(config=[config(need="solid")]), "spec.config[0].opaque.parameters", "solid", ""),
        (
            a_class(extendedResource="a/b"),
            "spec.extendedResource",
            "unknown key extendedResource",
            "did you mean extendedResourceName?",
        ),
    ],
)
def test_what_is_wrong_in_one_object(checked, document, path, message, hint):
    code, found = checked(document)
    assert len(found) == 1, found
    assert (found[0]["path"], code) == (path, 2 if found[0]["severity"] == "error" else 0)
    assert message in found[0]["message"]
    assert hint in (found[0]["hint"] or "")
    assert "line " in found[0]["message"]


@pytest.mark.parametrize(
    ("document", "severity", "message"),
    [
        (template(request(memory="90Gi")), "error", "the pod would stay pending: "),
        (template(request(memory="1500Mi")), "warning", "memory 1500Mi counts as 2Gi"),
        (template(request(MIG, f"{PROFILE} == '1g.10gb'")), "error", "it has profile 3g.40gb"),
        (
            template(request(memory="1Gi"), config=[config(need="hard")]),
            "error",
            "the node would refuse it: ",
        ),
        (a_class("gpu-by-name", "nvidia.com/gpu"), "error", "lists nvidia.com/gpu by device plugin, and has"),
        (template(request(memory="10Gi"), config=[config(need="advisory")]), None, ""),
        (template(request(NVIDIA, memory="90Gi")), "error", "the pod would stay pending: gpu-"),
        (template(request(NVIDIA, shares="2", memory="2Gi"), config=[sharing()]), None, ""),
        (template(request("mig.nvidia.com", NVIDIA_MIG), config=[sharing("MigDeviceConfig")]), None, ""),
        (a_claim(request(SHARE, shares="4")), None, ""),
        (a_class("gpu-by-name", "example.com/gpu"), None, ""),
        (a_class("no-gpu-of-ours", "nvidia.com/gpu", modes='["other"]'), None, ""),
    ],
)
def test_beside_what_a_policy_offers(checked, document, severity, message):
    code, found = checked(document, policy=POLICY)
    if severity is None:
        assert (code, found) == (0, [])
        return
    assert len(found) == 1, found
    assert (found[0]["severity"], code) == (severity, 3 if severity == "error" else 0)
    assert message in found[0]["message"]


ON_DEMAND = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, mig: {on-demand: true}}
  - {select: rest, exclusive: {}}
"""


def test_what_is_made_on_demand_can_be_asked_for_as_far_as_it_fits_together(checked):
    half, small = f"{PROFILE} == '3g.40gb'", f"{PROFILE} == '1g.10gb'"
    two = request(MIG, half, name="a"), request(MIG, half, name="b")
    assert checked(template(*two), policy=ON_DEMAND) == (0, [])
    code, (problem,) = checked(template(*two, request(MIG, small, name="c")), policy=ON_DEMAND)
    assert code == 3
    assert "goes to the request a of the same pod" in problem["message"]


def test_a_class_of_the_files_can_be_named_and_a_pod_has_the_claims_that_it_names(checked):
    asked = template(request("extra", memory="10Gi"))
    assert checked(a_class(), asked, pod("t"), policy=POLICY) == (0, [])
    wrong = pod("t")
    wrong["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
    del wrong["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    code, found = checked(wrong)
    assert code == 2
    assert [problem["path"] for problem in found] == [
        "spec.resourceClaims[0]",
        "spec.containers[0].resources.claims[0]",
    ]
    assert "needs one of resourceClaimName and resourceClaimTemplateName" in found[0]["message"]
    assert "the pod has no claim gpus" in found[1]["message"]

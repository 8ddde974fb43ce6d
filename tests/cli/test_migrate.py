"""``partage migrate``, and what ``partage check`` says of the same files."""

import asyncio
import json
import subprocess
import sys

import pytest
import yaml

from partage.cli.main import run
from tests.claims.offers import amounts
from tests.explain.test_explain_claims import ClaimApi, a_slice

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
    - name: main
      image: x
      env: [{name: A, value: "yes"}]
      resources: {limits: {nvidia.com/gpu: 1, %s}}
"""
POLICY = """\
version: partage/v1
gpus: [{select: all, via: claims, mps: {unit: 1Gi}}]
"""
PERCENT = POD % "nvidia.com/gpumem-percentage: 50"
MEMORY = POD % "nvidia.com/gpumem: 3000"
ON = ("--machine", "2xh100-sxm5-80gb")


@pytest.fixture
def file(tmp_path):
    def write(text, name="pod.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_manifests_are_printed_with_the_templates_that_they_need(capsys, file):
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
    assert run(["migrate", file(f"{MEMORY}---\n{service}---\n{MEMORY}")]) == 0
    out, err = capsys.readouterr()
    kinds = [document["kind"] for document in yaml.safe_load_all(out)]
    assert kinds == ["ResourceClaimTemplate", "Pod", "Service", "Pod"]
    assert err.count("becomes a pod with a claim for memory 3000Mi of gpu.partage.dev (main)") == 2
    again = file(out, "again.yaml")
    assert run(["migrate", again]) == 0
    second = capsys.readouterr()
    assert second.out == out
    assert "nothing is changed" in second.err
    assert run(["check", again]) == 0


QUOTA = """\
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus%s}
spec: {hard: {requests.nvidia.com/gpumem: "6000"%s}}
"""


@pytest.mark.parametrize(
    ("namespace", "more", "said"),
    [
        ("", "", True),
        (", namespace: default", "", True),
        (", namespace: other", "", False),
        ("", ", gpu.partage.dev.deviceclass.resource.k8s.io/devices: 2", False),
    ],
)
def test_a_quota_that_no_longer_counts_is_said(capsys, file, namespace, more, said):
    manifest = file(f"{MEMORY}---\n{QUOTA % (namespace, more)}")
    words = "ResourceQuota gpus of namespace default limits requests.nvidia.com/gpumem, and counts nothing"
    assert run(["migrate", manifest]) == 0
    assert (words in " ".join(capsys.readouterr().err.split())) is said
    run(["check", manifest])
    assert (words in " ".join(capsys.readouterr().out.split())) is said


def test_a_list_in_json(capsys, file):
    assert run(["migrate", file(MEMORY), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [item["kind"] for item in document["items"]] == ["ResourceClaimTemplate", "Pod"]
    assert document["items"][1]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "yes"}]


def test_a_percentage_needs_the_sizes_of_gpus(capsys, file):
    assert run(["migrate", file(PERCENT)]) == 2
    assert "once the sizes of the GPUs are known" in capsys.readouterr().err
    assert run(["check", file(PERCENT)]) == 0
    assert "1 warning" in capsys.readouterr().out, "and none about resources of the device plugin"
    policy = file(POLICY, "policy.yaml")
    assert run(["migrate", file(PERCENT), "--policy", policy, *ON]) == 0
    assert "memory: 39Gi" in capsys.readouterr().out


def test_nothing_is_printed_where_a_pod_is_refused(capsys, file):
    large = POD % "nvidia.com/gpumem: 300000"
    policy = file(POLICY, "policy.yaml")
    assert (
        run(["migrate", file(MEMORY), file(large, "large.yaml"), "--policy", policy, *ON, "-o", "json"]) == 3
    )
    assert "300000Mi is asked for" in capsys.readouterr().err
    assert run(["migrate", file(POD % "nvidia.com/gpumem: x", "wrong.yaml"), file(MEMORY)]) == 2
    out, err = capsys.readouterr()
    assert "no whole number" in err
    assert "ResourceClaimTemplate" not in out


def test_the_unit_of_gpushare_can_be_mib(capsys, file):
    text = (POD % "aliyun.com/gpu-mem: 2000").replace("nvidia.com/gpu: 1, ", "")
    assert run(["migrate", file(text), "--gpu-mem-unit", "MiB"]) == 0
    assert "memory: 2000Mi" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--cluster", "--policy", "p.yaml"], "exclude each other"),
        ([], "is no Kubernetes manifest"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, file, arguments, text):
    assert run(["migrate", file(POLICY), *arguments]) == 2
    assert text in capsys.readouterr().err


def test_check_says_the_same_of_what_is_not_rewritten_yet(capsys, file):
    assert run(["check", file(MEMORY)]) == 0
    assert "partage migrate FILE writes it so" in capsys.readouterr().out
    assert run(["check", file(PERCENT)]) == 0  # unknown sizes are no fault of the file
    policy = file(POLICY, "policy.yaml")
    assert run(["check", file(PERCENT), "--policy", policy, *ON]) == 0
    assert "memory 39Gi" in capsys.readouterr().out.replace("\n", " ")
    gang = MEMORY.replace("{name: p}", "{name: p, annotations: {pod-group-name: g}}")
    assert run(["check", file(gang)]) == 2
    assert "belongs to the group g" in capsys.readouterr().out.replace("\n", " ")
    own = (POD % "cpu: 1").replace("nvidia.com/gpu: 1, ", "aliyun.com/gpu-mem: 2, ")
    assert run(["check", file(own)]) == 0
    assert "no problems" in capsys.readouterr().out


async def test_the_sizes_can_be_those_of_a_cluster(tmp_path, file):
    api = ClaimApi([], slices=[a_slice("n1", amounts(0)), a_slice("n2", amounts(0, 39))])
    async with api.served(tmp_path) as kubeconfig:
        words = [sys.executable, "-m", "partage", "migrate", file(PERCENT), "--cluster", kubeconfig]
        done = await asyncio.to_thread(
            subprocess.run, words, capture_output=True, text=True, timeout=60, check=True
        )
    template = next(iter(yaml.safe_load_all(done.stdout)))
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    asked = [way["capacity"]["requests"]["memory"] for way in request["firstAvailable"]]
    assert asked == ["19Gi", "39Gi"]


async def test_a_cluster_under_nvidias_driver_name_is_refused(tmp_path, file, capsys):
    renamed = json.loads(json.dumps(a_slice("n1", amounts(0))).replace("gpu.partage.dev", "gpu.nvidia.com"))
    async with ClaimApi([], slices=[renamed]).served(tmp_path) as kubeconfig:
        code = await asyncio.to_thread(run, ["migrate", file(PERCENT), "--cluster", kubeconfig])
    assert code == 3
    assert "under the driver name gpu.nvidia.com" in " ".join(capsys.readouterr().err.split())

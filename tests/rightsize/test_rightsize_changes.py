"""The patches and policies of ``partage rightsize``: with manifests, without them, and in units of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from partage.cli.main import run
from partage.edges.files.policy import parse_policy
from partage.units import GIB

HEAD = "time,namespace,pod,container,memory_bytes,sm"
PODS = {
    "train-7d4b9c6f5d-x2x4k": "team",  # of a Deployment
    "serve-0": "team",  # of a StatefulSet
    "nightly-29384756-x2x4k": "batch",  # of a CronJob
}
POD_SPEC = {
    "containers": [
        {"name": "sidecar"},
        {
            "name": "main",
            "resources": {
                "limits": {"nvidia.com/gpu": 1, "memory": "8Gi"},
                "requests": {"nvidia.com/gpu": 1, "cpu": 2},
            },
        },
    ]
}


def trace(tmp_path: Path, pods: dict[str, str], gib: float = 8.0) -> list[str]:
    """Each pod uses half of that, and all of it, in turn."""
    lines = [
        f"{at},{namespace},{pod},main,{int((gib if at % 120 else gib / 2) * GIB)},0.1"
        for pod, namespace in pods.items()
        for at in range(0, 3600, 60)
    ]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return ["rightsize", "--trace", str(path), "--gpu", "h100-sxm5-80gb"]


def owner(kind: str, name: str, namespace: str | None = None, **more: Any) -> dict[str, Any]:
    keys = {"CronJob": ("jobTemplate", "spec", "template", "spec"), "Pod": ()}.get(kind, ("template", "spec"))
    spec: Any = POD_SPEC
    for key in reversed(keys):
        spec = {key: spec}
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **more}
    version = {"Pod": "v1", "Job": "batch/v1", "CronJob": "batch/v1"}.get(kind, "apps/v1")
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def manifests(tmp_path: Path, *objects: dict[str, Any]) -> str:
    path = tmp_path / "manifests"
    path.mkdir(exist_ok=True)
    (path / "all.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    )
    (path / "values.yaml").write_text("replicas: 3\n")
    (path / ".all.yaml").write_text("rubbish: [")
    return str(path)


def patches(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, list[Any]]:
    assert run([*arguments, "-o", "patch"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    return said, list(yaml.safe_load_all(said))


def test_patches_know_the_kind_from_the_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = manifests(
        tmp_path,
        owner("Deployment", "train"),  # without a namespace, as kubectl apply -n takes it
        owner("Deployment", "train", "elsewhere"),
        owner("StatefulSet", "serve", "team"),
        owner("Pod", "serve-0", "team", ownerReferences=[{"kind": "StatefulSet", "name": "serve"}]),
        owner("CronJob", "nightly", "batch"),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "train"}, "spec": {}},
    )
    said, (nightly, serve, train) = patches(capsys, *trace(tmp_path, PODS), "--manifests", where)
    asked = {
        "limits": {"nvidia.com/gpu": None, "nvidia.com/gpu.shared": 1},
        "requests": {"nvidia.com/gpu": None},
    }
    containers = {"containers": [{"name": "main", "resources": asked}]}
    assert train == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {"template": {"spec": containers}},
    }
    assert (serve["kind"], serve["metadata"]["name"]) == ("StatefulSet", "serve")
    assert nightly["spec"] == {"jobTemplate": {"spec": {"template": {"spec": containers}}}}
    assert "kubectl patch cronjob nightly --namespace batch --patch-file FILE" in said
    assert "all.yaml" in said


@pytest.mark.parametrize(
    ("objects", "sentence"),
    [
        ([], "no manifest has it"),
        ([owner("Deployment", "train", "elsewhere")], "no manifest has it"),
        ([owner("Deployment", "train"), owner("Job", "train")], "may be of the Deployment in"),
    ],
)
def test_where_the_kind_is_not_known_the_patch_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], objects: list[dict[str, Any]], sentence: str
) -> None:
    more = [owner("StatefulSet", "other", "team"), *objects]
    pods = {"train-7d4b9c6f5d-x2x4k": "team"}
    said, (found,) = patches(capsys, *trace(tmp_path, pods), "--manifests", manifests(tmp_path, *more))
    assert sentence in said
    assert "kubectl patch KIND train --namespace team" in said
    limits = {"limits": {"nvidia.com/gpu.shared": 1}}
    assert found == {"spec": {"template": {"spec": {"containers": [{"name": "main", "resources": limits}]}}}}


@pytest.mark.parametrize("kind", ["Job", "Pod"])
def test_what_cannot_be_patched_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    name = "train-x2x4k" if kind == "Pod" else "train"
    where = manifests(tmp_path, owner(kind, name, "team"))
    said, (found,) = patches(capsys, *trace(tmp_path, {"train-x2x4k": "team"}), "--manifests", where)
    assert found["kind"] == kind
    assert "delete it and create it" in said


def test_a_file_that_is_no_manifest_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("replicas: 3\n")
    arguments = trace(tmp_path, PODS)
    assert run([*arguments, "-o", "patch", "--manifests", str(path)]) == 2
    assert "has no Kubernetes objects" in capsys.readouterr().err
    assert run([*arguments, "-o", "patch", "--manifests", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err
    assert run([*arguments, "--manifests", str(path)]) == 2
    assert "--manifests is for -o patch" in capsys.readouterr().err


def test_units_of_memory_take_the_place_of_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "220")  # the heads of columns are not folded
    arguments = [*trace(tmp_path, {"train-0": "team"}), "--unit", "1Gi"]
    assert run([*arguments, "-o", "json"]) == 0
    (train,) = yaml.safe_load(capsys.readouterr().out)["workloads"]
    assert (train["needBytes"], train["units"]) == (int(10.5 * GIB), 11), "a container gets whole units"
    assert run(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Units of 1 GiB" in said
    assert "1/4" not in said
    assert run([*arguments, "-o", "policy"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["gpus"] == [{"select": "all", "mps": {"unit": "1Gi"}}]
    parse_policy(text, "policy.yaml")
    _, (found,) = patches(capsys, *arguments)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"aliyun.com/gpu-mem": 11}}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--unit", "1Gi", "--strategy", "mig"], 2, "a MIG device has a fixed size"),
        (["--unit", "much"], 2, "is not an amount of memory"),
        (["--unit", "1500k"], 2, "whole number of MiB"),
        (["--unit", "60Gi", "-o", "policy"], 3, "has fewer units"),
        (["--unit", "1Mi"], 3, "a node has at most 8,000"),
        (["--unit", "90Gi"], 3, "has 0 units of 90 GiB"),
    ],
)
def test_units_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert run([*trace(tmp_path, {"train-0": "team"}, 60.0), *arguments]) == code
    assert message in capsys.readouterr().err


def test_a_workload_that_needs_the_whole_gpu_asks_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, (found,) = patches(capsys, *trace(tmp_path, {"train-0": "team"}, 60.0))
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}, "the policy makes GPUs exclusive"

"""The support bundle: what is in it, who can read it, and that no planted secret is."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from partage.cli.main import run
from partage.doctor.bundle import ROOT, BundleInput, write_bundle
from partage.doctor.decide.diagnose import diagnose
from partage.doctor.document import doctor_document
from partage.doctor.gather import see
from partage.edges.kube.port import ClusterNode
from tests.doctor.faults import FAULTS, UUID
from tests.doctor.node import Node

SECRET = "Zx9secretQ7planted"
"""Stands in every file that is read; none of its places may show it."""

JWT = f"eyJhbGciOiJSUzI1NiIsImtpZCI6Ilg.{SECRET}aaaa.{SECRET}bbbb"
LOG = f"""I1122 started pid=7
Authorization: Bearer {SECRET}
DB_PASSWORD={SECRET} went by
token {JWT}
https://user:{SECRET}@registry/v2
-----BEGIN PRIVATE KEY-----
{SECRET}
-----END PRIVATE KEY-----
GPU 0 is settled
"""
SLURM = f"""ClusterName=c
GresTypes=gpu
AccountingStoragePass={SECRET}
StorageUser={SECRET}
SlurmUser={SECRET}
PartitionName=p Nodes=ALL AllowAccounts={SECRET} AllowGroups={SECRET}
NodeName=n1 CPUs=8 RealMemory=1000 Gres=gpu:2
# {SECRET}
"""


@pytest.fixture
def planted(node: Node) -> Node:
    """A node with a secret in every file."""
    node.policy = f"# token: {SECRET}\nversion: partage/v1\ngpus:\n  - {{select: all, exclusive: {{}}}}\n"
    node.served(node.policy)
    node.file(
        "run/partage/report.json", json.dumps({"kind": "Report", "token": SECRET, "x": f"password={SECRET}"})
    )
    node.file("var/lib/partage/journal.jsonl", json.dumps({"secret": SECRET}) + "\n")
    for name in ("daemon.json", "start.log", "log/control.log", "log/server.log"):
        node.file(f"run/partage/mps/{UUID}/{name}", LOG)
    node.file("etc/slurm/slurm.conf", SLURM)
    node.file("etc/slurm/gres.conf", f"# password: {SECRET}\nNodeName=n1 Name=gpu File=/dev/nvidia[0-1]\n")
    node.file(f"var/log/containers/partage-x_partage_agent-{'0' * 64}.log", LOG)
    node.file("var/log/containers/other-x_a_b-1.log", LOG)
    containerd = node.at("etc/containerd/config.toml")
    auth = f'[plugins."io.containerd.grpc.v1.cri".registry.configs."r".auth]\npassword = "{SECRET}"\n'
    containerd.write_text(containerd.read_text() + auth)
    node.process(
        301,
        "partage",
        "/usr/bin/partage",
        "agent",
        "--http-token",
        SECRET,
        f"--password={SECRET}",
        f"A_B={SECRET}",
    )
    node.process(302, "partage", "/usr/bin/partage", "agent", environ=f"SECRET={SECRET}")
    return node


def _read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        assert {one.mode for one in archive.getmembers()} == {0o600}
        found = {}
        for one in archive.getmembers():
            stream = archive.extractfile(one)
            assert stream is not None
            found[one.name.removeprefix(f"{ROOT}/")] = stream.read().decode()
        return found


def test_no_planted_secret_is_in_the_bundle(capsys: pytest.CaptureFixture[str], planted: Node) -> None:
    path = planted.at("b.tar.gz")
    kubeconfig = planted.file(
        "kubeconfig",
        f"users:\n- name: a\n  user:\n    token: {SECRET}\n    client-key-data: {SECRET}\n"
        f"    client-certificate-data: {SECRET}\n",
    )
    assert run([*planted.arguments(), "--bundle", str(path), "--log", str(kubeconfig), "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)["bundle"]
    found = _read(path)
    assert [one["name"] for one in told["files"]] == list(found)
    for name in (
        "CONTENTS.txt", "doctor.json", "observation.json", "versions.json", "machine.json", "report.json",
        "state.json", "journal.jsonl", "policy/policy.yaml", f"mps/{UUID}/log/control.log",
        "slurm/slurm.conf", "slurm/gres.conf", "logs/given-0-kubeconfig",
        f"logs/partage-x_partage_agent-{'0' * 64}.log",
    ):  # fmt: skip
        assert name in found
        assert name in found["CONTENTS.txt"] or name == "CONTENTS.txt"
    assert [name for name, text in found.items() if SECRET in text] == []
    assert "other-x" not in " ".join(found)
    assert "NodeName=n1 CPUs=8" in found["slurm/slurm.conf"]
    assert "GPU 0 is settled" in found[f"mps/{UUID}/log/control.log"]
    assert all(
        json.loads(text) for name, text in found.items() if name.count("/") == 0 and name.endswith(".json")
    )
    assert "two-agents" in found["doctor.json"]


def test_only_its_owner_can_read_it_and_it_is_whole_or_not_there(
    capsys: pytest.CaptureFixture[str], node: Node
) -> None:
    path = node.at("b.tar.gz")
    path.write_text("an earlier one")
    path.chmod(0o644)
    assert run([*node.arguments(), "--bundle", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert "doctor.json" in _read(path)
    said = " ".join(capsys.readouterr().out.split())
    assert "doctor.json: the doctor's findings" in said
    assert "Look before you send it" in said
    assert [one.name for one in path.parent.iterdir() if ".new" in one.name] == []
    assert run([*node.arguments(), "--bundle", str(node.at("nowhere/b.tar.gz"))]) == 2
    assert run([*node.arguments(), "--bundle", str(path), "--log", str(node.at("no.log"))]) == 2
    assert "doctor.json" in _read(path), "the one before is still there"


def test_serial_numbers_and_annotations_of_others_stay_here(node: Node) -> None:
    node.gpu(0, serial="1654322000123")
    FAULTS["persistence-off"](node)
    seen = see(node.place, node.given, None)
    document = doctor_document(diagnose(seen), (), done=False)
    cluster_node = ClusterNode(
        "n1", "u", "7",
        labels={"pool": "a"},
        annotations={"partage.dev/plan": "kept", "kubectl.kubernetes.io/last-applied-configuration": SECRET},
        address="10.0.0.7",
    )  # fmt: skip
    path = node.at("b.tar.gz")
    write_bundle(str(path), node.place, BundleInput(document, seen, node=cluster_node))
    found = _read(path)
    assert json.loads(found["node.json"])["annotations"] == {"partage.dev/plan": "kept"}
    assert "10.0.0.7" not in found["node.json"]
    assert [name for name, text in found.items() if "1654322000123" in text or SECRET in text] == []
    assert json.loads(found["machine.json"])["gpus"]

"""``partage doctor`` as a command: answers, exit codes, ``--fix``."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partage.cli.main import run
from partage.codec.values import encode
from partage.doctor.decide.finding import MakeDirectory, RemoveSocket
from partage.doctor.decide.observation import SlurmState, Unseen
from partage.doctor.gather_slurm import slurm_seen
from partage.doctor.host.root import DoctorPlace, NodeRoot
from partage.doctor.repair import carry_out
from partage.edges.files.directory_lock import RUN_LOCK, take_lock
from partage.model.gpu import Inventory, NoDriver
from tests.agent.harness import MACHINE, Place, native, place, registered, running, spawn
from tests.agent.test_cluster import NodeServer, _kubeconfig
from tests.answers.reports import a_document, a_report
from tests.doctor.faults import FAULTS, UUID
from tests.doctor.node import KUBELET, POLICY, Node, mps_environ
from tests.edges.hardware.conftest import stub_library
from tests.edges.hardware.stub import StubNode
from tests.edges.kube.scripted import api_server
from tests.kubelet_script import scripted_kubelet

__all__ = ["stub_library"]

OURS = "var/run/cdi/k8s.device-plugin.nvidia.com-gpu"


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run([*arguments, "-o", "json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


def _said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def _codes(answer: dict[str, Any]) -> list[str]:
    return [one["code"] for one in answer["findings"]]


def test_a_machine_without_a_gpu_has_one_cause_and_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    code, answer = _json(capsys, "doctor", "--root", str(tmp_path))
    assert (code, _codes(answer), answer["notLooked"]) == (1, ["no-gpu"], [])
    run(["doctor", "--root", str(tmp_path)])
    assert "There is no NVIDIA driver on this machine, and no NVIDIA GPU either" in _said(capsys)


def test_a_healthy_node_is_exit_code_0(capsys: pytest.CaptureFixture[str], node: Node) -> None:
    code, answer = _json(capsys, *node.arguments())
    assert (code, answer["healthy"], answer["findings"]) == (0, True, [])
    assert answer["looked"] > 40
    assert run(node.arguments()) == 0
    assert _said(capsys).startswith("no problem found (")


def test_a_simulated_node_without_files_says_what_was_not_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--machine", "8xh100-sxm5-80gb"]) == 0
    said = _said(capsys)
    assert said.startswith("no problem found (")
    assert "not looked at: " in said
    assert "name it with --policy FILE" in said


def test_a_finding_says_what_was_seen_what_to_do_and_what_follows(
    capsys: pytest.CaptureFixture[str], node: Node
) -> None:
    FAULTS["runtime-without-nvidia"](node)
    FAULTS["gpus-lost-on-reload"](node)
    FAULTS["persistence-off"](node)
    code, answer = _json(capsys, *node.arguments())
    assert code == 1
    assert [one["severity"] for one in answer["findings"]] == ["error", "warning"]
    assert run(node.arguments()) == 1
    said = _said(capsys)
    assert "error: containerd does not know NVIDIA's runtime" in said
    assert "seen: /etc/containerd/config.toml has the handlers runc" in said
    assert "do: Install the NVIDIA container toolkit" in said
    assert "1 error, 1 warning (" in said


def test_a_driver_that_answers_is_asked_below_the_root(
    capsys: pytest.CaptureFixture[str], short_dir: Path, stub_library: Path
) -> None:
    """NVML itself, here its stand-in, and the files of the same root."""
    stub = StubNode(short_dir / "r", stub_library).add_h100s(2)
    stub.file("proc/driver/nvidia/version", "NVRM version: Kernel Module  550.163.01  x\n")
    code, answer = _json(capsys, "doctor", "--root", str(stub.root))
    assert code == 1
    assert "device-file-missing" in _codes(answer)
    assert "no-gpu" not in _codes(answer)
    stub.driver_gone(18)
    stub.file("proc/driver/nvidia/version", "NVRM version: Kernel Module  575.57.08  x\n")
    assert _codes(_json(capsys, "doctor", "--root", str(stub.root))[1])[0] == "version-mismatch"


def test_the_agents_own_reasons_are_findings(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        place() as at,
        scripted_kubelet(at.kubelet_dir, at.pod_resources) as kubelet,
        running(spawn(at, policy=native())),
    ):
        registered(kubelet, "nvidia.com/gpu")
        at.in_report_file('"watching":true')
        assert _beside(capsys, at)[1] == []
        at.write_policy("version: partage/v1\ngpus: [{select: all, mig: {layout: [9g.99gb]}}]\n")
        at.in_report_file('"policy-refused"')
        code, found = _beside(capsys, at)
        assert (code, found) == (1, ["agent:policy-refused"])


def _beside(capsys: pytest.CaptureFixture[str], at: Place) -> tuple[int, list[str]]:
    code, answer = _json(capsys, "doctor", "--machine", MACHINE, "--run-dir", str(at.run_dir))
    return code, [one["code"] for one in answer["findings"]]


def test_a_policy_that_is_named_is_compared_also_beside_an_agent(
    capsys: pytest.CaptureFixture[str], node: Node
) -> None:
    report = a_document(a_report(str(node.place.machine), POLICY))
    node.agent_runs()
    node.at("run/partage/report.json").write_bytes(encode(report))
    FAULTS["gpus-differ"](node)
    assert _codes(_json(capsys, *node.arguments())[1]) == ["gpus-differ"]
    node.policy = None
    assert _codes(_json(capsys, *node.arguments())[1]) == []


@pytest.mark.parametrize(
    "wrong",
    [
        ["--dry-run"],
        ["--log", "x"],
        ["--bundle", "-"],
        ["--root", "/nowhere"],
        ["--policy", "/nowhere.yaml"],
        ["--cluster"],
    ],
    ids=" ".join,
)
def test_wrong_options_are_exit_code_2(capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    assert run(["doctor", "--machine", "2xh100-sxm5-80gb", *wrong]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_as_a_process_it_needs_no_more_than_the_others(node: Node) -> None:
    """Verbs are imported without TLS: what works inside of the tests has to work there, too."""
    command = [sys.executable, "-m", "partage", *node.arguments(), "--bundle", str(node.at("b.tar.gz"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no problem found" in done.stdout


def test_a_report_counts_while_somebody_holds_the_lock_beside_it(
    capsys: pytest.CaptureFixture[str], node: Node
) -> None:
    """From the host the pid of an agent in a pod says nothing."""
    node.served()
    report = a_document(a_report(str(node.place.machine), POLICY))
    elsewhere = replace(report, agent=replace(report.agent, pid_namespace="pid:[1]", pid=4_000_000))
    (node.at("run/partage")).mkdir(parents=True)
    node.at("run/partage/report.json").write_bytes(encode(elsewhere))
    lock = take_lock(node.at("run/partage"), RUN_LOCK)
    try:
        _, answer = _json(capsys, *node.arguments())
        assert _codes(answer) == []
    finally:
        os.close(lock)
    _, answer = _json(capsys, *node.arguments())
    assert _codes(answer) == ["agent-not-running"]
    assert "its agent has ended" in answer["findings"][0]["evidence"][-1]


def test_an_agent_without_a_report_that_can_be_read_is_said(
    capsys: pytest.CaptureFixture[str], node: Node
) -> None:
    node.agent_runs()
    assert run(node.arguments()) == 0
    assert "not looked at: the agent's report: an agent runs, and there is no report of it" in _said(capsys)
    node.file("run/partage/report.json", "{}")
    assert run(node.arguments()) == 0
    assert "is not a report of this version of Partage" in _said(capsys)


async def test_the_node_object_of_a_cluster(node: Node) -> None:
    """As a process: inside of the tests TLS has been imported already."""
    async with api_server() as server:
        api = NodeServer(server)
        api.labels = {"nvidia.com/gpu.deploy.device-plugin": "true"}
        api.annotations = {"partage.dev/plan": "kept", "other.example.com/token": "Zx9planted"}
        path = node.at("b.tar.gz")
        command = [
            sys.executable, "-m", "partage", *node.arguments(), "-o", "json", "--bundle", str(path),
            "--cluster", f"--kubeconfig={_kubeconfig(node.root, server.url)}", "--node-name", "n1",
        ]  # fmt: skip
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert _codes(json.loads(done.stdout)) == ["operator-plugin"]
    with tarfile.open(path) as archive:
        stream = archive.extractfile("partage-doctor/node.json")
        assert stream is not None
        assert json.loads(stream.read())["annotations"] == {"partage.dev/plan": "kept"}


def _slurm(node: Node) -> list[str]:
    """A node of Slurm, with the files that Partage writes for it."""
    shutil.rmtree(node.at("var/lib/kubelet"))
    node.remove("proc/100/comm")
    node.labels = None
    written = [
        "slurm", "config", "--machine", str(node.place.machine), "--policy", str(node.given.file),
        "--slurm-version", "24.11.5", "--node", "n1", "--node-settings", "CPUs=8 RealMemory=1000",
        "--output", str(node.at("etc/slurm")),
    ]  # fmt: skip
    node.at("etc/slurm").mkdir()
    assert run(written) == 0
    node.file("etc/partage/slurm/devices.json", node.at("etc/slurm/devices.json").read_text())
    lines = node.at("etc/slurm/slurm.conf").read_text()
    node.file("etc/slurm/slurm.conf", f"ClusterName=c\n{lines}")
    return [*node.arguments(), "--slurm-version", "24.11.5", "--node-name", "n1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="devices.json counts only if root has written it")
def test_a_node_of_slurm(capsys: pytest.CaptureFixture[str], node: Node) -> None:
    arguments = _slurm(node)
    capsys.readouterr()
    code, answer = _json(capsys, *arguments)
    assert (code, answer["findings"]) == (0, [])
    assert [one["why"] for one in answer["notLooked"]] == ["slurmctld was not asked"]
    record = node.at("run/partage/jobs/7.json")
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    (finding,) = _json(capsys, *arguments)[1]["findings"]
    assert finding["code"] == "slurm-record-unreadable"
    assert "7.json cannot be read" in str(finding["evidence"])
    record.unlink()
    devices = node.at("etc/partage/slurm/devices.json")
    devices.write_text(devices.read_text().replace('"uuid": "GPU-', '"uuid": "GPU-0'))
    assert _codes(_json(capsys, *arguments)[1]) == ["slurm-devices-stale"]


@pytest.mark.skipif(os.geteuid() != 0, reason="devices.json counts only if root has written it")
def test_on_a_node_of_slurm_jobs_start_the_mps_daemons(
    capsys: pytest.CaptureFixture[str], node: Node
) -> None:
    """Without a job there is none, and that is no difference from the policy."""
    node.policy = "version: partage/v1\ngpus:\n  - {select: all, mps: {replicas: 4}}\n"
    arguments = _slurm(node)
    capsys.readouterr()
    assert _codes(_json(capsys, *arguments)[1]) == []


AS_NOBODY = """
import os, sys
from partage.cli.main import run
run(sys.argv[1:])  # imports everything: the files of the tests may be for root only
print("----")
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_is_told_what_only_root_can_see(node: Node) -> None:
    """And nothing that this user may not look at is called wrong."""
    node.agent_runs()
    node.served()
    node.process(400, "nvidia-cuda-mps", "nvidia-cuda-mps-control", environ=mps_environ("/run/partage/mps/x"))
    for path, mode in (
        (".", 0o755), ("var/lib/kubelet", 0o700), ("var/lib/partage", 0o700), ("proc/400/environ", 0o400),
        ("run/partage/agent.lock", 0o600),
    ):  # fmt: skip
        node.at(path).chmod(mode)
    command = [sys.executable, "-c", AS_NOBODY, *node.arguments()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = " ".join(done.stdout.partition("----")[2].split())
    assert (done.stderr, done.returncode) == ("", 0), said
    assert "only root may look into /var/lib/kubelet/device-plugins" in said
    assert "only root may look at the locks of the agent" in said
    assert "only root may see which pipe directory MPS process 400 has" in said


@pytest.mark.parametrize(
    ("known", "why"), [(True, "slurmctld does not answer"), (False, "which release of Slurm")]
)
def test_a_slurmctld_that_does_not_answer_is_said(tmp_path: Path, known: bool, why: str) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSelectType=select/cons_tres\n")
    script = '#!/bin/sh\n[ "$1" = --version ] && echo slurm 24.11.5 && exit 0\n' if known else "#!/bin/sh\n"
    (tmp_path / "scontrol").write_text(f"{script}echo 'Unable to contact slurm controller' >&2\nexit 1\n")
    (tmp_path / "slurmd").write_text("#!/bin/sh\nexit 1\n")  # it is asked where scontrol says nothing
    for program in ("scontrol", "slurmd"):
        (tmp_path / program).chmod(0o755)
    place = DoctorPlace(NodeRoot(), "/k", "/s", "/r", node_name="n1", slurm_bin=tmp_path)
    seen = slurm_seen(place, Inventory(NoDriver("failed", "x")), {"SLURM_CONF": str(conf)})
    if isinstance(seen, SlurmState):
        assert why in seen.live_unseen
        assert (seen.files, seen.live) == ((str(conf),), ())
    else:
        assert isinstance(seen, Unseen)
        assert why in seen.why


# --- --fix --------------------------------------------------------------------------------------


def _leftovers(node: Node) -> list[Path]:
    for name in ("mps-left", "cdi-broken: ours", "sockets-left"):
        FAULTS[name](node)
    return [
        node.at(f"run/partage/mps/{UUID}"),
        node.at(f"{OURS}.json"),
        node.at(f"{KUBELET}/nvidia-gpu.shared.sock"),
    ]


def test_dry_run_says_what_fix_does_and_fix_does_it(capsys: pytest.CaptureFixture[str], node: Node) -> None:
    left = _leftovers(node)
    code, answer = _json(capsys, *node.arguments(), "--fix", "--dry-run")
    assert (code, [one["done"] for one in answer["repairs"]]) == (1, [False] * 3)
    assert all(path.exists() for path in left)
    code, answer = _json(capsys, *node.arguments(), "--fix")
    assert [(one["done"], one["left"]) for one in answer["repairs"]] == [(True, "")] * 3
    assert not any(path.exists() for path in left)
    assert not node.at(f"{OURS}.digest").exists()
    assert (code, answer["findings"]) == (0, [])
    assert run([*node.arguments(), "--fix"]) == 0


def test_fix_leaves_what_is_not_ours_alone(capsys: pytest.CaptureFixture[str], node: Node) -> None:
    """NVIDIA's file of the same name has no digest, or is newer than ours; its sockets are not ours."""
    FAULTS["cdi-broken: ours"](node)
    node.file(f"{OURS}.json", node.at(f"{OURS}.json").read_text())
    FAULTS["cdi-broken"](node)
    node.left_socket(f"{KUBELET}/nvidia-mig-1g.10gb.sock")
    code, answer = _json(capsys, *node.arguments(), "--fix")
    assert (code, answer["repairs"]) == (1, [])
    assert node.at(f"{OURS}.json").exists()
    assert node.at("etc/cdi/nvidia.yaml").exists()
    assert node.at(f"{KUBELET}/nvidia-mig-1g.10gb.sock").exists()


@pytest.mark.parametrize("since", ["daemon", "agent", "no proc"])
def test_what_is_used_meanwhile_is_not_removed(node: Node, since: str) -> None:
    FAULTS["mps-left"](node)
    (repair,) = node.diagnose().repairs
    if since == "daemon":
        node.process(9, "nvidia-cuda-mps", "nvidia-cuda-mps-control", environ=mps_environ(repair.path))
    elif since == "agent":
        node.agent_runs()
    else:
        node.remove("proc/self/ns/pid")
    assert carry_out(node.place, repair).left
    assert node.at(repair.path).exists()


def test_a_specification_that_fits_again_stays(node: Node) -> None:
    FAULTS["cdi-broken: ours"](node)
    (repair,) = node.diagnose().repairs
    node.file("dev/nvidia-caps/nvidia-cap9", "")
    assert carry_out(node.place, repair).left == "it fits again"
    assert node.at(repair.path).exists()


def test_a_socket_at_which_somebody_listens_again_stays(node: Node) -> None:
    path = f"{KUBELET}/nvidia-gpu.sock"
    node.listen(path)
    assert "listens" in carry_out(node.place, RemoveSocket(path)).left
    assert carry_out(node.place, RemoveSocket("/proc/devices")).left == "it is no socket"
    assert carry_out(node.place, RemoveSocket("/nothing")).left
    assert node.at(path).exists()
    node.left_socket("left.sock")
    node.agent_runs()
    assert "agent" in carry_out(node.place, RemoveSocket("/left.sock")).left


def test_a_directory_of_ours_is_made(node: Node) -> None:
    assert carry_out(node.place, MakeDirectory("/var/lib/partage")).left == ""
    assert node.at("var/lib/partage").stat().st_mode & 0o777 == 0o700

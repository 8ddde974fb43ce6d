"""CDI files of claims that are left after an uninstall: whose they are, who needs them, which are removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.claims.decide.cdi import KIND, ClaimCdi
from partage.claims.files import ClaimCdiFiles
from partage.doctor.decide.finding import RemoveClaimFile
from partage.doctor.repair import carry_out
from tests.claims.test_files import done
from tests.doctor.faults import POD_RESOURCES
from tests.doctor.node import Node
from tests.kubelet_script import ScriptedKubelet, held


@pytest.fixture
def kubelet(node: Node, short_dir: Path) -> Iterator[ScriptedKubelet]:
    """It says which pods have claims: team-a/train has team-a/used."""
    found = ScriptedKubelet(short_dir / "dp", node.at(POD_RESOURCES))
    answer = held({"team-a/train": {"main": {}}})
    answer.pod_resources[0].containers[0].dynamic_resources.add(claim_name="used", claim_namespace="team-a")
    found.pod_resources = answer
    found.start()
    yield found
    found.stop()


def left(node: Node, *names: str, directory: str = "var/run/cdi") -> list[str]:
    """The CDI files as the driver writes them; their paths on the node."""
    files = ClaimCdiFiles(node.at(directory))
    for name in names:
        files.write(done(name), ClaimCdi({"cdiVersion": "0.6.0", "kind": KIND, "devices": []}, ()))
    return [f"/{directory}/gpu.partage.dev-claim_uid-{name}.json" for name in names]


@pytest.mark.usefixtures("kubelet")
def test_each_file_is_named_with_its_claim_and_the_pods_that_have_it(node: Node) -> None:
    used, free = left(node, "used", "free")
    (simulated,) = left(node, "of-a-simulation", directory="run/partage/cdi")
    (finding,) = node.diagnose().findings
    assert (finding.code, finding.severity) == ("claim-files-left", "warning")
    assert finding.evidence == (
        f"{used}: of claim team-a/used, which pod team-a/train has",
        f"{free}: of claim team-a/free, which no running pod has",
        f"{simulated}: of claim team-a/of-a-simulation, which no running pod has",
    )
    assert f"(rm {free} {simulated})" in finding.fix
    assert "Leave 1 file until the last of these pods has ended" in finding.fix
    assert finding.repairs == (RemoveClaimFile(free), RemoveClaimFile(simulated))
    for repair in finding.repairs:
        assert carry_out(node.place, repair).left == ""
        assert not node.at(repair.path).exists()
    assert node.at(used).exists()


def test_what_is_needed_meanwhile_is_not_removed(node: Node, kubelet: ScriptedKubelet) -> None:
    (free,) = left(node, "free")
    answer = kubelet.pod_resources
    answer.pod_resources[0].containers[0].dynamic_resources.add(claim_name="free", claim_namespace="team-a")
    assert carry_out(node.place, RemoveClaimFile(free)).left == "pod team-a/train has its claim now"
    node.agent_runs()
    assert "agent runs" in carry_out(node.place, RemoveClaimFile(free)).left
    assert node.at(free).exists()


def test_without_the_kubelets_answer_nothing_is_removed(node: Node) -> None:
    node.remove(POD_RESOURCES)
    node.left_socket(POD_RESOURCES)
    (free,) = left(node, "free")
    (finding,) = node.diagnose().findings
    assert finding.evidence == (f"{free}: of claim team-a/free; whether a pod has it is not known",)
    assert finding.repairs == ()
    assert carry_out(node.place, RemoveClaimFile(free)).left
    assert node.at(free).exists()


@pytest.mark.usefixtures("kubelet")
def test_files_of_others_and_of_a_running_agent_are_no_finding(node: Node) -> None:
    node.file("var/run/cdi/k8s.gpu.nvidia.com-claim_3f0e8a52.json", "{}")
    assert node.diagnose().findings == ()
    left(node, "free")
    node.agent_runs()
    assert node.diagnose().findings == ()


def test_a_path_that_is_no_file_of_a_claim_is_not_removed(node: Node, kubelet: ScriptedKubelet) -> None:
    del kubelet
    node.file("var/run/cdi/gpu.partage.dev-claim_a.json.d/x", "")
    assert "not known" in carry_out(node.place, RemoveClaimFile("/etc/cdi/nvidia.yaml")).left
    assert node.at("etc/cdi/nvidia.yaml").exists()

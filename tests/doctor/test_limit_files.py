"""What memory limits have left after an uninstall: who may need it, and the command that removes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.edges.cdi.limit_files import LimitFiles
from partage.model.driver_limit import DriverLimit
from partage.model.ids import GpuUuid, ResourceName
from partage.plan.serve.limit_edits import limit_set, limit_terms
from partage.units import GIB
from tests.doctor.faults import POD_RESOURCES
from tests.doctor.node import Node
from tests.kubelet_script import ScriptedKubelet, held

HOOK = "/var/lib/partage/bin/partage-limit-hook"
CDI, KEPT = "/var/run/cdi", "/var/lib/partage/limits"


@pytest.fixture
def kubelet(node: Node, short_dir: Path) -> Iterator[ScriptedKubelet]:
    """It says that team-a/train has a share of GPU-used."""
    found = ScriptedKubelet(short_dir / "dp", node.at(POD_RESOURCES))
    found.pod_resources = held({"team-a/train": {"main": {"nvidia.com/gpu.shared": ["GPU-used::1"]}}})
    found.start()
    yield found
    found.stop()


def left(node: Node, gpu: str) -> list[str]:
    """The file of one set, and its copy."""
    limits = limit_set([DriverLimit(GpuUuid(gpu), GIB)], ResourceName("nvidia.com/gpu.shared"))
    LimitFiles(node.at(CDI[1:]), node.at(KEPT[1:])).write(limits, limit_terms(HOOK, "/", "", nvidia=False))
    return [f"{place}/gpu.partage.dev-limits_{limits.name}.json" for place in (CDI, KEPT)]


@pytest.mark.usefixtures("kubelet")
def test_what_a_pod_needs_stays_and_the_rest_has_a_command(node: Node) -> None:
    free, used = left(node, "GPU-free"), left(node, "GPU-used")
    node.file(HOOK[1:], "program")
    (finding,) = node.diagnose().findings
    assert (finding.code, finding.severity) == ("limit-files-left", "warning")
    assert f"{used[0]}: team-a/train may need it" in finding.evidence
    assert f"{free[0]}: no pod needs it" in finding.evidence
    assert f"{HOOK}: team-a/train may need it" in finding.evidence
    assert f"rm {free[0]} {free[1]}. Leave the rest until the last of these pods has ended" in finding.fix


@pytest.mark.usefixtures("kubelet")
def test_the_hook_goes_with_the_last_file(node: Node) -> None:
    free = left(node, "GPU-free")
    node.file(HOOK[1:], "program")
    (finding,) = node.diagnose().findings
    assert finding.fix == f"Remove what no pod needs: rm {free[0]} {free[1]} {HOOK}"
    for path in (*free, HOOK):
        node.at(path).unlink()
    assert node.diagnose().findings == ()


def test_without_the_kubelets_answer_nothing_is_called_unneeded(node: Node) -> None:
    first, second = left(node, "GPU-free")
    (finding,) = node.diagnose().findings
    assert finding.fix == f"When no pod of this node has a GPU: rm {first} {second}"


def test_an_agent_that_runs_looks_after_them(node: Node) -> None:
    left(node, "GPU-free")
    node.agent_runs()
    assert not [found for found in node.diagnose().findings if found.code == "limit-files-left"]

"""MPS daemons outlive the helper that started them. The driver and its control program are stand-ins."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partage.edges.host.procfs import runs
from partage.model.mps import CONTROL_PROGRAM, SERVER_PROGRAM
from partage.sim.mps.node import CLIENT_PROGRAM, MpsNode, install_programs
from partage.units import GIB
from tests.e2e.cluster import NAMESPACE, ROOT, Cluster, Json
from tests.e2e.tenants import pod
from tests.edges.hardware.stub import StubNode

pytestmark = pytest.mark.usefixtures("tenants")

POLICY = """\
version: partage/v1
gpus:
  - select: {index: [0]}
    mps: {replicas: 3}
"""
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
PROC = Path("/proc")
OFFER = {GPU: 1, SHARED: 3}


def _driver(root: Path) -> None:
    """A driver's root with two GPUs. Its programs run on the Python of the helper's image."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = root.with_name("libnvidia-ml.so.1")
    source = ROOT / "tests" / "edges" / "hardware" / "nvml_stub.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    node = StubNode(root, library).add_h100s(2).with_live_mig(0).with_live_mig(1)
    # What GPUs keep is in a file beside the library, which the helper may not write there.
    node.library.with_name("live.bin").symlink_to("/run/partage/gpus-of-the-stand-in.bin")
    programs = root / "usr" / "bin"
    install_programs(programs, MpsNode({StubNode.uuid(index): 80 * GIB for index in range(2)}))
    for name in (CONTROL_PROGRAM, SERVER_PROGRAM, CLIENT_PROGRAM):
        lines = (programs / name).read_text().splitlines()
        code = [line for line in lines[1:] if not line.startswith("sys.path")]
        (programs / name).write_text("\n".join(["#!/opt/partage/bin/python -I", *code, ""]))


@pytest.fixture(scope="module")
def values(cluster: Cluster) -> dict[str, Any]:
    if cluster.folder is None:
        pytest.skip("the stand-in for a driver is put on the node of an own cluster")
    root = cluster.folder / "driver"
    _driver(root)
    return {"driverRoot": str(root), "config": {"map": {"default": POLICY}}}


@pytest.fixture(scope="module")
def node(cluster: Cluster, values: dict[str, Any]) -> Iterator[Cluster]:
    with cluster.with_chart(**values):
        cluster.until_allocatable(OFFER)
        yield cluster


def _daemon(node: Cluster) -> Json:
    (daemon,) = node.report()["gpus"][0]["mpsDaemons"]
    found: Json = daemon
    return found


def _serving(node: Cluster, pid: int) -> bool:
    daemon = _daemon(node)
    assert (daemon["pid"], daemon["state"]) == (pid, "serving"), daemon
    return True


def _unharmed(node: Cluster, before: Json) -> None:
    status = node.pod("client")["status"]["containerStatuses"][0]
    assert (status["containerID"], status["restartCount"]) == (before["containerID"], 0)
    assert "control" in node.kubectl("exec", "client", "--", "ls", f"/mps/{SHARED}/pipe")


def test_daemons_go_on_through_an_upgrade_a_crash_and_the_replacement_of_the_helper(
    node: Cluster, values: dict[str, Any]
) -> None:
    node.apply(pod("client", {SHARED: 1}))
    before = node.until_phase("client", "Running")["status"]["containerStatuses"][0]
    environment = node.environment("client")
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{SHARED}/pipe"
    assert environment["PARTAGE_GUARANTEE"] == "advisory", "nothing refuses pods that could set its limits"
    pid = _daemon(node)["pid"]
    assert runs(PROC, pid)
    _unharmed(node, before)

    # An upgrade of the chart changes the helper's template; with OnDelete, its pod stays.
    helper, agent = node.component("hardware"), node.component("agent")["metadata"]["name"]
    upgraded = values | {"podAnnotations": {"upgraded": "yes"}}
    node.install(wait=False, **upgraded)
    node.until("another agent runs", lambda: node.component("agent")["metadata"]["name"] != agent)
    node.until_allocatable(OFFER)
    assert node.component("hardware")["metadata"]["uid"] == helper["metadata"]["uid"]
    node.until("the daemon serves", lambda: _serving(node, pid))

    # The helper crashes, and is started again in the same pod.
    node.kill_container(helper, "hardware")
    node.until("the helper runs again", lambda: _restarts(node) == 1)
    node.until_allocatable(OFFER)
    node.until("the daemon serves", lambda: _serving(node, pid))
    _unharmed(node, before)

    # An admin deletes the helper's pod, and gets the new one. This node's cgroups can be written.
    node.kubectl("delete", "pod", "-n", NAMESPACE, helper["metadata"]["name"])
    node.until("another helper runs", lambda: _replaced(node, helper))
    node.until_allocatable(OFFER)
    node.until("the daemon serves", lambda: _serving(node, pid))
    _unharmed(node, before)

    # Without MPS in the policy and without a client, the daemon ends.
    node.kubectl("delete", "pod", "client", "--grace-period=0", "--force")
    node.install(wait=False, **upgraded | {"config": {"map": {"default": "version: partage/v1\n"}}})
    node.until_allocatable({GPU: 2}, timeout_s=150)
    assert not runs(PROC, pid)


def _restarts(node: Cluster) -> int:
    (status,) = node.component("hardware")["status"]["containerStatuses"]
    restarts: int = status["restartCount"]
    return restarts if "running" in status["state"] else 0


def _replaced(node: Cluster, old: Json) -> bool:
    now = node.component("hardware")
    other: bool = now["metadata"]["uid"] != old["metadata"]["uid"]
    return other and bool(now["status"]["phase"] == "Running")

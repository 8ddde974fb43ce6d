"""The chart beside the node's own NVIDIA container toolkit: pods get GPU and driver by CDI, through kubelet
and CRI of a real containerd. No GPU: NVIDIA's libraries, device files without a driver, a stand-in for NVML.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import GPU, Cluster
from tests.e2e.tenants import pod
from tests.edges.hardware.conftest import compiled_stub
from tests.nvidia.driver import CUDA, DEVICE_FILES, OWN_FILE, driver_550
from tests.nvidia.packages import toolkit

pytestmark = pytest.mark.usefixtures("tenants")

POLICY = "version: partage/v1\nresources: {device-list-strategy: cdi-cri}\n"
SPEC = "/var/run/cdi/nvidia.yaml"
"""Where ``nvidia-cdi-refresh`` writes it."""


@pytest.fixture(scope="module")
def driver(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root of the node's driver; its device files are on the node."""
    if cluster.folder is None:
        pytest.skip("the stand-in for a driver is put on the node of an own cluster")
    toolkit()
    made = driver_550(cluster.folder / "driver-550", compiled_stub(tmp_path_factory.mktemp("nvml")))
    # What GPUs keep is in a file beside the library, which the helper may not write there.
    made.library.with_name("live.bin").symlink_to("/run/partage/gpus-of-the-stand-in.bin")
    with cluster.device_files({f"/dev/{name}": numbers for name, numbers in DEVICE_FILES.items()}):
        yield made.root


@pytest.fixture(scope="module")
def node(cluster: Cluster, driver: Path) -> Iterator[Cluster]:
    try:
        cluster.install(driverRoot=str(driver), cdi={"enabled": True}, config={"map": {"default": POLICY}})
        yield cluster
    finally:
        cluster.uninstall()
        cluster.empty("/var/run/cdi")


def _refresh(node: Cluster, driver: Path) -> None:
    """As the toolkit's service does at every boot, on the node."""
    programs = toolkit()
    node.on_node(
        "env",
        f"LD_LIBRARY_PATH={driver}/usr/lib64",
        f"PATH={programs}:/usr/sbin:/usr/bin:/sbin:/bin",
        str(programs / "nvidia-ctk"),
        "cdi",
        "generate",
        "--mode=nvml",
        f"--driver-root={driver}",
        "--dev-root=/",
        f"--output={SPEC}",
    )


def test_pods_get_the_driver_and_their_gpu_by_the_toolkits_spec(node: Cluster, driver: Path) -> None:
    node.until("the agent says what is missing", lambda: "cdi-incomplete" in node.agent_http("healthz"))
    node.until_allocatable({})

    _refresh(node, driver)
    node.until_allocatable({GPU: 2})
    node.apply(pod("first", {GPU: 1}), pod("second", {GPU: 1}), pod("none", {}))
    for name in ("first", "second", "none"):
        node.until_phase(name, "Running")

    given = set()
    for name in ("first", "second"):
        environment = node.environment(name)
        given.add(uuid := environment["PARTAGE_GPUS"])
        assert environment["NVIDIA_VISIBLE_DEVICES"] == "void", "the runtime hook is to do nothing"
        files = node.kubectl("exec", name, "--", "find", "/dev", "-name", "nvidia*", "-type", "c").split()
        assert set(files) == {OWN_FILE[uuid], "/dev/nvidiactl", "/dev/nvidia-uvm"}
        theirs = node.kubectl("exec", name, "--", "md5sum", CUDA).split()[0]
        assert theirs == node.run("md5sum", str(driver / CUDA.lstrip("/"))).split()[0]
        links = node.kubectl("exec", name, "--", "ls", "/usr/lib64").split()
        assert "libcuda.so.1" in links, "made by the toolkit's hook"
    assert given == set(OWN_FILE)
    assert node.kubectl("exec", "none", "--", "find", "/dev", "-name", "nvidia*") == ""
    assert "usr" not in node.kubectl("exec", "none", "--", "ls", "/").split(), "libraries have a folder there"


def test_without_the_toolkits_spec_no_pod_starts_without_libraries(node: Cluster, driver: Path) -> None:
    """The spec of another driver is none; pods that run go on."""
    _refresh(node, driver)
    node.until_allocatable({GPU: 2})
    node.apply(pod("before", {GPU: 1}))
    node.until_phase("before", "Running")

    node.on_node("sed", "-i", "s/550.163.01/535.261.03/g", SPEC)
    node.until_allocatable({}, timeout_s=120)
    assert "it is for driver 535.261.03, and 550.163.01 is loaded" in node.agent_http("healthz")
    node.apply(pod("after", {GPU: 1}))
    node.until("it is not scheduled", lambda: node.events("FailedScheduling", "after"))
    assert node.pod("before")["status"]["phase"] == "Running"

    _refresh(node, driver)
    node.until_phase("after", "Running")
    assert CUDA in node.kubectl("exec", "after", "--", "ls", CUDA)

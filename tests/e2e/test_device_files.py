"""Device files: a container has those of its own GPUs, and no other GPU can be opened from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from tests.e2e.cluster import MACHINE, Cluster
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("tenants")

POLICY = """\
version: partage/v1
resources: {pass-device-specs: true}
gpus:
  - select: {index: [0]}
    time-slicing: {replicas: 2}
  - select: {index: [1]}
    mig: {layout: [3g.20gb, 2g.10gb]}
"""
GPU, SHARED, LARGE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.20gb"
CONTROL = {
    "nvidiactl": (195, 255),
    "nvidia-modeset": (195, 254),
    "nvidia-uvm": (511, 0),
    "nvidia-uvm-tools": (511, 1),
}
CAPS = 509
"""Major number of the files below ``/dev/nvidia-caps``: one of those that drivers get."""


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    if not cluster.own:
        pytest.skip("device files are made on the node of an own cluster only")
    with cluster.with_chart(hardware={"machine": MACHINE}, config={"map": {"default": POLICY}}):
        cluster.until_allocatable({GPU: 2, SHARED: 2, LARGE: 1, "nvidia.com/mig-2g.10gb": 1})
        numbers = {f"/dev/{name}": pair for name, pair in CONTROL.items()}
        numbers |= {f"/dev/nvidia{index}": (195, index) for index in range(4)}
        for path in _caps(cluster):
            numbers[path] = (CAPS, int(path.rpartition("cap")[2]))
        with cluster.device_files(numbers):
            yield cluster


def _caps(node: Cluster) -> set[str]:
    """Files of MIG instances that the agent offers."""
    offers = [device for devices in node.report()["offer"].values() for device in devices]
    return {path for one in offers for path in one["nodes"] if "caps" in path}


def _files(node: Cluster, name: str) -> set[str]:
    """NVIDIA's device files in a container, as names below ``/dev``."""
    found = node.kubectl("exec", name, "--", "find", "/dev", "-name", "nvidia*", "-type", "c").split()
    return {str(PurePosixPath(path).relative_to("/dev")) for path in found}


def test_a_container_has_the_files_of_its_gpus_and_no_others(node: Cluster) -> None:
    node.apply(pod("whole", {GPU: 2}), pod("slice", {SHARED: 1}), pod("mig", {LARGE: 1}), pod("none", {}))
    for name in ("whole", "slice", "mig", "none"):
        node.until_phase(name, "Running")
    assert _files(node, "whole") == {*CONTROL, "nvidia2", "nvidia3"}
    assert _files(node, "slice") == {*CONTROL, "nvidia0"}
    of_mig = _files(node, "mig")
    caps = {name for name in of_mig if name.startswith("nvidia-caps/")}
    assert of_mig - caps == {*CONTROL, "nvidia1"}
    assert len(caps) == 2, "the GPU instance and the compute instance"
    assert len(_caps(node)) == 4
    assert _files(node, "none") == set()


def test_another_gpu_cannot_be_opened_by_a_file_that_the_container_makes(node: Cluster) -> None:
    """The kernel refuses it (device cgroup). Nothing answers behind these files: its own say just that."""
    node.apply(pod("slice", {SHARED: 1}))
    node.until_phase("slice", "Running")

    def opened(path: str) -> str:
        return node.kubectl("exec", "slice", "--", "sh", "-c", f"exec 3<{path}", check=False)

    assert "No such device" in opened("/dev/nvidia0")
    node.kubectl("exec", "slice", "--", "mknod", "/tmp/other", "c", "195", "3")
    assert "Operation not permitted" in opened("/tmp/other")

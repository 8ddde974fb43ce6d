"""The hook, compiled once, and a node for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edges.cdi.limit_hook.node import CgroupNode, Runc, built_hook
from tests.edges.hardware.conftest import compiled_stub
from tests.edges.hardware.stub import StubNode


@pytest.fixture(scope="session")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    return built_hook(tmp_path_factory.mktemp("hook"))


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVML."""
    return compiled_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def cgroups() -> Iterator[CgroupNode]:
    """A node with cgroup v2."""
    node = CgroupNode()
    yield node
    node.close()


@pytest.fixture
def driver(stub_library: Path, tmp_path: Path) -> StubNode:
    """A driver that takes memory limits, and two GPUs."""
    node = StubNode(tmp_path / "root", stub_library).add_h100s(2)
    node.write(**{"driver": "615.71.09", "gpu.0.limits": "misc", "gpu.1.limits": "misc"})
    return node


@pytest.fixture
def runc(cgroups: CgroupNode, tmp_path: Path) -> Iterator[Runc]:
    """The real runc and a root file system of busybox."""
    if shutil.which("runc") is None or not Path("/bin/busybox").exists():
        pytest.skip("no runc or busybox: tests/cluster/packages fetches them")
    image = tmp_path / "image"
    for name in ("bin", "dev", "proc", "driver"):
        (image / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", image / "bin")
    for name in ("sh", "cat", "sleep", "true"):
        (image / "bin" / name).symlink_to("busybox")
    made = Runc(cgroups, tmp_path, image)
    yield made
    made.close()

"""A node with NVIDIA's own libraries and container toolkit, and the directories of its CDI specs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.model.gpu import Inventory
from tests.edges.hardware.conftest import compiled_stub
from tests.edges.hardware.stub import StubNode
from tests.nvidia.driver import DEVICE_FILES, driver_550
from tests.nvidia.packages import toolkit


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """Stands for /etc/cdi."""
    folder = tmp_path / "etc"
    folder.mkdir()
    return folder


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    """Stands for /var/run/cdi."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> StubNode:
    """A node with NVIDIA's libraries of branch 550, and the stand-in in place of NVML's."""
    if os.geteuid():
        pytest.skip("device files are made as root")
    made = driver_550(tmp_path / "root", compiled_stub(tmp_path_factory.mktemp("nvml")))
    (made.root / "dev").mkdir()
    for name, numbers in DEVICE_FILES.items():
        os.mknod(made.root / "dev" / name, 0o20666, os.makedev(*numbers))
    return made


@pytest.fixture
def environment(root: StubNode, monkeypatch: pytest.MonkeyPatch) -> Path:
    """nvidia-ctk finds the stand-in, and itself."""
    programs = toolkit()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(root.library.parent))
    monkeypatch.setenv("PATH", f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin")
    return programs


async def inventory_of(root: StubNode) -> Inventory:
    hardware = NvmlHardware(root.root, host=root.host)
    try:
        return await hardware.observe()
    finally:
        await hardware.close()

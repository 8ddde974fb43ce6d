"""The plugin, compiled once, and a driver for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edges.hardware.conftest import compiled_stub
from tests.edges.hardware.stub import StubNode
from tests.slurm.limits.lab import built_plugin


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugin and the hook."""
    return built_plugin(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVML."""
    return compiled_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(nvml: Path, tmp_path: Path) -> StubNode:
    """A driver that takes memory limits, and two GPUs."""
    node = StubNode(tmp_path / "root", nvml).add_h100s(2)
    node.write(**{"driver": "615.71.09", "gpu.0.limits": "misc", "gpu.1.limits": "misc"})
    return node

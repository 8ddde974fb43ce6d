"""Nodes with an MPS control program."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.mps.paths import Driver
from partage.errors import Unsupported
from partage.sim.mps.node import CLIENT_PROGRAM, Node, install
from partage.units import GIB
from tests.edges.mps.subjects import CUDA_CLIENT, GPUS, Subject, ending, has_driver

SIMULATED = "simulated control program"
REAL = pytest.param(
    "the driver's control program",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not has_driver(), reason="this machine has no NVIDIA driver")],
)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory with room for a socket's 107 bytes, that other users may pass."""
    with tempfile.TemporaryDirectory(prefix="partage-mps-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def simulated_subject(directory: Path, node: Node | None = None) -> Subject:
    install(directory / "usr/bin", node or Node(dict.fromkeys(GPUS, 80 * GIB)))
    client = (str(directory / "usr/bin" / CLIENT_PROGRAM),)
    return Subject(directory / "run", directory, GPUS, client, simulated=True)


async def _real_subject(directory: Path) -> Subject:
    try:
        Driver().program()
    except Unsupported as absent:
        pytest.skip(str(absent))
    hardware = NvmlHardware()
    try:
        inventory = await hardware.observe()
    finally:
        await hardware.close()
    client = (sys.executable, str(CUDA_CLIENT))
    devices = tuple(gpu.uuid for gpu in inventory if not gpu.mig_enabled)
    return Subject(directory / "run", Path("/"), devices, client, simulated=False)


@pytest.fixture
async def simulated(short_dir: Path) -> AsyncIterator[Subject]:
    """The simulated control program on a node of two GPUs."""
    async with ending(simulated_subject(short_dir)) as subject:
        yield subject


@pytest.fixture(params=[SIMULATED, REAL])
async def subject(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Subject]:
    """Both control programs in turn."""
    made = simulated_subject(short_dir) if request.param == SIMULATED else await _real_subject(short_dir)
    async with ending(made) as one:
        yield one

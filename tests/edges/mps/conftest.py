"""Nodes with an MPS control program."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.mps.paths import DriverFiles
from partage.errors import Unsupported
from partage.lab.tenant import TenantLaunch
from partage.model.gpu import Driver as RealDriver
from partage.sim.mps.node import CLIENT_PROGRAM, MpsNode
from partage.units import GIB
from tests.edges.mps.stand_in import install_real
from tests.edges.mps.subjects import GPUS, Subject, ending, has_driver
from tests.nvidia.packages import BRANCHES, unpacked
from tests.sim.mps.programs import install_programs

NAMED_SINCE = 615
"""Driver branch from which a control program speaks version 3 of its language."""

_REAL_ONLY = [
    pytest.mark.real,
    pytest.mark.gpu,
    pytest.mark.skipif(not has_driver(), reason="this machine has no NVIDIA driver"),
]
SUBJECTS = [
    *(
        pytest.param(
            ("simulated", branch),
            # What the others of version 2 can lies between the first one and the ``simulated`` subject,
            # which can all of it; version 3 has ``test_control_v3.py``.
            marks=[] if branch == BRANCHES[0] else [pytest.mark.real],
            id=f"simulated {branch}",
        )
        for branch in (*BRANCHES, str(NAMED_SINCE))
    ),
    *(
        pytest.param(
            ("NVIDIA's", branch),
            marks=pytest.mark.real,
            id=f"NVIDIA's {branch}, a process in the server's place",
        )
        for branch in BRANCHES
    ),
    pytest.param(("driver", BRANCHES[-1]), marks=_REAL_ONLY, id="the driver's control program"),
    pytest.param(
        ("driver", str(NAMED_SINCE)), marks=_REAL_ONLY, id="the driver's control program, version 3"
    ),
]


def simulated_subject(directory: Path, node: MpsNode | None = None, protocol: int = 2) -> Subject:
    node = node or MpsNode(dict.fromkeys(GPUS, 80 * GIB))
    install_programs(directory / "usr/bin", node)
    client = (str(directory / "usr/bin" / CLIENT_PROGRAM),)
    return Subject(directory / "run", directory, GPUS, client, simulated=True, protocol=protocol, node=node)


def standing_in(directory: Path, branch: str) -> Subject:
    """NVIDIA's control program of a branch, with a process in its server's place."""
    node = MpsNode.of_branch(int(branch), dict.fromkeys(GPUS, 80 * GIB))
    client = install_real(directory, unpacked(branch), node)
    return Subject(directory / "run", directory, GPUS, client, simulated=False, node=node)


async def _real_subject(directory: Path, protocol: int) -> Subject:
    try:
        DriverFiles().program()
    except Unsupported as absent:
        pytest.skip(str(absent))
    hardware = NvmlHardware()
    try:
        inventory = await hardware.observe()
    finally:
        await hardware.close()
    assert isinstance(inventory.driver, RealDriver)
    branch = inventory.driver.version.partition(".")[0]
    if protocol == 3 and int(branch) < NAMED_SINCE:
        pytest.skip(f"driver branch {branch} speaks version 2")
    client = TenantLaunch(sys.executable, "cuda").argv()
    devices = tuple(gpu.uuid for gpu in inventory if not gpu.mig_enabled)
    return Subject(directory / "run", Path("/"), devices, client, simulated=False, protocol=protocol)


@pytest.fixture
async def simulated(short_dir: Path) -> AsyncIterator[Subject]:
    """The simulated control program on a node of two GPUs."""
    async with ending(simulated_subject(short_dir)) as subject:
        yield subject


@pytest.fixture
async def named(short_dir: Path) -> AsyncIterator[Subject]:
    """The same, told to speak version 3."""
    async with ending(simulated_subject(short_dir, protocol=3)) as subject:
        yield subject


@pytest.fixture(params=SUBJECTS)
async def subject(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Subject]:
    """Both control programs in turn, in each version of their language."""
    kind, branch = request.param
    protocol = 3 if int(branch) >= NAMED_SINCE else 2
    if kind == "simulated":
        node = MpsNode.of_branch(int(branch), dict.fromkeys(GPUS, 80 * GIB))
        made = simulated_subject(short_dir, node, protocol=protocol)
    elif kind == "driver":
        made = await _real_subject(short_dir, protocol)
    else:
        made = standing_in(short_dir, branch)
    async with ending(made) as one:
        yield one

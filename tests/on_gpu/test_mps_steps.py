"""Steps with MPS daemons, on the simulated control program, whose clients are simulated, too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.codec.values import decode
from partage.lab.place import TenantMode
from partage.lab.tenant import TenantProcess, start_tenant
from partage.sim.mps.node import CLIENT_PROGRAM, MpsNode
from partage.units import GIB
from tests.edges.mps.subjects import GPUS
from tests.sim.mps.programs import install_programs
from tools.on_gpu import mps_steps
from tools.on_gpu.notes import Notes, StepAnswer, StepPlace

pytestmark = pytest.mark.xdist_group("on-gpu")


class SimulatedPlace(StepPlace, frozen=True):
    """A tenant is a simulated client."""

    async def tenant(
        self, pipe: Path | None = None, device: str = "", before: tuple[str, ...] = ()
    ) -> TenantProcess:
        mode = TenantMode.ALONE if pipe is None else TenantMode.MPS
        environment = self.tenants(pipe, device).environment(mode)
        argv = (*before, str(self.driver_root / "usr/bin" / CLIENT_PROGRAM))
        tenant = await start_tenant(argv, environment, 10.0)
        await tenant.connected()
        return tenant


@pytest.fixture
def place() -> Iterator[SimulatedPlace]:
    with tempfile.TemporaryDirectory(prefix="partage-mps-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        install_programs(Path(directory) / "usr/bin", MpsNode(dict.fromkeys(GPUS, 80 * GIB)))
        yield SimulatedPlace(directory, directory, GPUS[0], 80 * GIB)


def said(notes: Path) -> dict[str, tuple[str, str]]:
    answer = decode(StepAnswer, notes.read_bytes())
    return {finding.row: (finding.verdict, finding.words) for finding in answer.findings}


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount takes root")
async def test_a_client_with_a_read_only_pipe_is_told_from_a_process_beside_the_daemon(
    place: SimulatedPlace, tmp_path: Path
):
    await mps_steps.read_only_pipe(place, Notes(tmp_path / "answer"))
    assert said(tmp_path / "answer") == {"read-only-pipe": ("seen", "it is a client")}
    assert list((place.run_dir / "mps").glob("GPU-*/")) == []


async def test_a_daemon_has_its_limits_by_its_environment(place: SimulatedPlace, tmp_path: Path):
    await mps_steps.mps_environment(place, Notes(tmp_path / "answer"))
    verdict, words = said(tmp_path / "answer")["mps-environment"]
    assert verdict == "seen", words
    assert "of the server: 2G" in words

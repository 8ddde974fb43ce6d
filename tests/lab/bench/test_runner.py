"""Whole runs: real processes, and beside them the simulated MPS control program, which none reaches."""

import sys
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.edges.mps.keeper import MpsKeeper
from partage.errors import HardwareError
from partage.lab.bench.memory import memory_limits
from partage.lab.bench.model import BenchSettings, Experiment
from partage.lab.bench.runner import BenchRunner
from partage.lab.gpus import guard_directory
from partage.lab.place import TenantMode, TenantPlace
from partage.lab.tenant import TenantLaunch
from partage.model.ids import GpuUuid, MigUuid
from partage.model.mps import DaemonSpec
from partage.sim.mps.node import MpsNode
from partage.units import GIB, MIB
from tests.sim.mps.programs import install_programs

GPU = GpuUuid("GPU-11111111-2222-3333-4444-000000000000")
QUICK = BenchSettings(
    device="cpu", engine="python", processes=(1, 2), experiments=("inference",), repeats=2, passes=1,
    seconds=0.02, small_points=10, saturating_points=50, deadline_s=20.0,
)  # fmt: skip


def _runner(place, settings=QUICK, python=sys.executable):
    return BenchRunner(settings, place, TenantLaunch(python, "python", "cpu"), lambda _: None)


@pytest.fixture
async def daemon():
    """A control daemon that allows 2 GiB, and the place of its GPU."""
    with tempfile.TemporaryDirectory(prefix="partage-bench-", dir="/tmp") as directory:
        root = Path(directory)
        install_programs(root / "usr/bin", MpsNode({GPU: 24 * GIB}))
        keeper = MpsKeeper(root / "run", root)
        await keeper.start(DaemonSpec(GPU, GPU, memory_bytes=2 * GIB))
        pipe = root / "run" / "mps" / GPU / "pipe"
        yield TenantPlace(GPU, pipe=pipe, memory_bytes=24 * GIB, share_bytes=2 * GIB, driver_root=root)
        await keeper.stop(GPU, force=True)


@pytest.fixture
def refused_without_mps(tmp_path):
    """A Python that a GPU in exclusive-process mode refuses, unless it comes through the daemon."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ntest -d "$CUDA_MPS_PIPE_DIRECTORY" || { echo device busy >&2; exit 1; }\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


async def test_processes_that_the_daemon_does_not_know_are_noticed(daemon):
    cells = await _runner(daemon).cells()
    under_mps = [cell for cell in cells if cell.mode is TenantMode.MPS]
    assert [(cell.processes, cell.clients_seen) for cell in under_mps] == [(1, 0), (2, 0)]
    assert all(cell.clients_seen is None for cell in cells if cell.mode is not TenantMode.MPS)


@pytest.mark.parametrize(("exclusive", "promise"), [(True, "guarded"), (False, "advisory")])
async def test_the_limit_is_the_daemons_read_back(daemon, exclusive, promise):
    found = dict(await memory_limits(QUICK, replace(daemon, exclusive=exclusive)))
    assert (found[TenantMode.MPS].bytes, found[TenantMode.MPS].promise) == (2 * GIB, promise)
    assert (found[TenantMode.TIME_SLICING].bytes, found[TenantMode.TIME_SLICING].promise) == (2 * GIB, "none")


async def test_without_a_daemon_to_ask_a_limit_is_only_the_clients_own(tmp_path):
    place = TenantPlace(GPU, pipe=tmp_path, memory_bytes=24 * GIB, share_bytes=GIB, driver_root=tmp_path)
    found = dict(await memory_limits(QUICK, place))
    assert (found[TenantMode.MPS].promise, found[TenantMode.MPS].client) == ("advisory", "0=1024M")


async def test_a_mig_device_and_the_guard_have_limits_of_their_own():
    place = TenantPlace(
        MigUuid("MIG-0"),
        mig=(MigUuid("MIG-0"),),
        guard=guard_directory(),
        memory_bytes=5 * GIB,
        share_bytes=GIB,
    )
    found = {mode: (limit.bytes, limit.promise) for mode, limit in await memory_limits(QUICK, place)}
    assert found[TenantMode.MIG] == (5 * GIB, "hard")
    assert found[TenantMode.WITH_GUARD] == (GIB, "advisory")


async def test_where_only_clients_are_let_in_the_rest_fails_and_mps_is_measured(daemon, refused_without_mps):
    cells = await _runner(daemon, python=refused_without_mps).cells()
    good = {(cell.mode, cell.processes) for cell in cells if cell.good}
    assert good == {(TenantMode.MPS, 1), (TenantMode.MPS, 2)}
    for cell in cells:
        if cell.mode is not TenantMode.MPS:
            (once,) = cell.repeats
            assert {sample.failure.what for sample in once.samples if sample.failure} == {"died"}
            assert all("device busy" in sample.failure.message for sample in once.samples if sample.failure)


async def test_a_machine_on_which_nobody_can_compute_is_an_error(refused_without_mps):
    with pytest.raises(HardwareError, match=r"not even one process alone.*device busy"):
        await _runner(TenantPlace(GPU), python=refused_without_mps).cells()


async def test_a_cell_that_fails_is_not_tried_again_and_the_others_go_on(tmp_path):
    # The limit on processor time kills whoever computes the saturating kernels, and nobody else.
    settings = BenchSettings(
        device="cpu", engine="python", processes=(1,), experiments=("pi", "inference"), repeats=3, passes=1,
        seconds=0.02, small_points=10, saturating_points=50, deadline_s=20.0,
    )  # fmt: skip
    runner = _runner(TenantPlace(), settings)
    await runner._calibrate()
    runner._rounds[Experiment.SATURATING] = 10**9
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nulimit -t 1\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    runner.launch = TenantLaunch(str(slow), "python", "cpu")
    from partage.lab.bench.model import sessions

    for session in sessions(settings, TenantPlace()):
        await runner._session(session, "")
    counted = {key.experiment: (len(cell.repeats), len(cell.good)) for key, cell in runner._cells.items()}
    assert counted == {
        Experiment.SMALL: (3, 3),
        Experiment.SATURATING: (1, 0),
        Experiment.INFERENCE: (3, 3),
    }


async def test_memory_is_tried_in_fresh_processes():
    settings = BenchSettings(device="cpu", engine="python", experiments=("memory",), deadline_s=20.0)
    tried = await _runner(TenantPlace(share_bytes=3 * MIB), settings).memory()
    assert [(one.thirds, one.seen, one.expected) for one in tried] == [(2.5, "fits", ""), (3.0, "fits", "")]


def test_limits_that_the_tenants_felt_are_remarked():
    runner = _runner(TenantPlace(GPU))
    assert runner.remarks() == ()
    runner.facts = {TenantMode.ALONE: {"multiprocessors": 132}, TenantMode.MPS: {"multiprocessors": 32}}
    assert "32 of 132 multiprocessors" in runner.remarks()[0]
    runner.facts = {TenantMode.WITH_GUARD: {"guard": "torch: cuda:0 0.2400"}}
    assert runner.remarks() == ("The guard said of itself: torch: cuda:0 0.2400.",)

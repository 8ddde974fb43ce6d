"""What is measured, where, and in which order."""

from pathlib import Path

import pytest

from partage.lab.bench.model import (
    BenchSettings,
    CellKey,
    Experiment,
    guard_sessions,
    possible_modes,
    sessions,
)
from partage.lab.place import NO_DAEMON, TenantMode, TenantPlace
from partage.model.ids import GpuUuid, MigUuid

GPU_0 = GpuUuid("GPU-0")

GPU = TenantPlace(device=GPU_0, memory_bytes=100, share_bytes=50)
MPS = TenantPlace(device=GPU_0, pipe=Path("/run/partage/mps/GPU-0/pipe"))
MIG = TenantPlace(device=MigUuid("MIG-0"), mig=(MigUuid("MIG-0"), MigUuid("MIG-1")))


@pytest.mark.parametrize(
    ("place", "processes", "found"),
    [
        (TenantPlace(), 1, [TenantMode.ALONE]),
        (TenantPlace(), 2, [TenantMode.SEQUENTIAL, TenantMode.PARALLEL]),
        (GPU, 1, [TenantMode.ALONE]),
        (GPU, 4, [TenantMode.SEQUENTIAL, TenantMode.TIME_SLICING]),
        (MPS, 1, [TenantMode.ALONE, TenantMode.MPS]),
        (MPS, 4, [TenantMode.SEQUENTIAL, TenantMode.TIME_SLICING, TenantMode.MPS]),
        (MIG, 2, [TenantMode.SEQUENTIAL, TenantMode.TIME_SLICING, TenantMode.MIG]),
        (MIG, 4, [TenantMode.SEQUENTIAL, TenantMode.TIME_SLICING]),
    ],
)
def test_processes_run_in_every_mode_that_is_there(place, processes, found):
    assert list(possible_modes(place, processes)) == found


def test_every_cell_gets_all_its_repeats_over_the_passes():
    settings = BenchSettings(repeats=5, passes=2, processes=(1, 4))
    counted: dict[CellKey, int] = {}
    for session in sessions(settings, MPS):
        for key in session.keys:
            counted[key] = counted.get(key, 0) + session.repeats
    assert set(counted.values()) == {5}
    assert {(key.mode, key.processes) for key in counted if key.experiment is Experiment.SMALL} == {
        (TenantMode.ALONE, 1), (TenantMode.MPS, 1),
        (TenantMode.SEQUENTIAL, 4), (TenantMode.TIME_SLICING, 4), (TenantMode.MPS, 4),
    }  # fmt: skip


def test_the_second_pass_goes_backwards():
    first, second = ([one for one in sessions(BenchSettings(), MPS) if one.number == n] for n in (1, 2))
    assert [one.keys for one in first] == [one.keys for one in reversed(second)]


def test_a_pass_without_repeats_is_none():
    assert {one.number for one in sessions(BenchSettings(repeats=1, passes=2), GPU)} == {1}


def test_requests_are_not_made_one_after_the_other():
    keys = [key for one in sessions(BenchSettings(), MPS) for key in one.keys]
    assert (Experiment.INFERENCE, TenantMode.SEQUENTIAL) not in {(key.experiment, key.mode) for key in keys}


def test_only_what_was_asked_for_is_measured():
    assert sessions(BenchSettings(experiments=("memory",)), GPU) == ()
    assert guard_sessions(BenchSettings(experiments=("inference",), guard=True)) == ()
    assert guard_sessions(BenchSettings()) == ()


def test_with_and_without_the_guard_take_turns():
    modes = [one.mode for one in guard_sessions(BenchSettings(guard=True, repeats=3))]
    without, with_it = TenantMode.WITHOUT_GUARD, TenantMode.WITH_GUARD
    assert modes == [without, with_it, with_it, without, without, with_it]


def test_without_mps_no_daemon_is_found_even_at_the_default_place(monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/somebody-elses")
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")
    plain = MPS.environment(TenantMode.TIME_SLICING)
    assert plain["CUDA_MPS_PIPE_DIRECTORY"] == NO_DAEMON
    assert not Path(NO_DAEMON).exists()
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in plain
    assert plain["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert MPS.environment(TenantMode.MPS)["CUDA_MPS_PIPE_DIRECTORY"] == str(MPS.pipe)


def test_under_mig_everybody_has_a_device_and_otherwise_all_have_one():
    devices = [MIG.environment(TenantMode.MIG, number)["CUDA_VISIBLE_DEVICES"] for number in range(2)]
    assert devices == ["MIG-0", "MIG-1"]
    assert MIG.environment(TenantMode.TIME_SLICING, 1)["CUDA_VISIBLE_DEVICES"] == "MIG-0"


def test_the_guard_is_on_the_path_of_its_own_mode_and_off_in_every_other(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/the/image")
    place = TenantPlace(device=GPU_0, guard=Path("/guard"), memory_bytes=100, share_bytes=50)
    guarded, plain = place.environment(TenantMode.WITH_GUARD), place.environment(TenantMode.WITHOUT_GUARD)
    assert guarded["PYTHONPATH"] == "/guard:/the/image"
    assert (guarded["PARTAGE_MEMORY_BYTES"], guarded["PARTAGE_TOTAL_BYTES"]) == ("50", "100")
    assert guarded["PARTAGE_GUARD"] != "off"
    assert plain["PARTAGE_GUARD"] == "off"
    assert plain["PYTHONPATH"] == "/the/image"

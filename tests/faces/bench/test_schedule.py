"""What is measured, where, and in which order."""

from pathlib import Path

import pytest

from partage.faces.bench.model import Experiment, Key, Mode, Settings
from partage.faces.bench.places import NO_DAEMON, Place
from partage.faces.bench.schedule import guard_sessions, sessions

GPU = Place(device="GPU-0", memory_bytes=100, share_bytes=50)
MPS = Place(device="GPU-0", pipe=Path("/run/partage/mps/GPU-0/pipe"))
MIG = Place(device="MIG-0", mig=("MIG-0", "MIG-1"))


@pytest.mark.parametrize(
    ("place", "processes", "modes"),
    [
        (Place(), 1, [Mode.ALONE]),
        (Place(), 2, [Mode.SEQUENTIAL, Mode.PARALLEL]),
        (GPU, 1, [Mode.ALONE]),
        (GPU, 4, [Mode.SEQUENTIAL, Mode.TIME_SLICING]),
        (MPS, 1, [Mode.ALONE, Mode.MPS]),
        (MPS, 4, [Mode.SEQUENTIAL, Mode.TIME_SLICING, Mode.MPS]),
        (MIG, 2, [Mode.SEQUENTIAL, Mode.TIME_SLICING, Mode.MIG]),
        (MIG, 4, [Mode.SEQUENTIAL, Mode.TIME_SLICING]),
    ],
)
def test_processes_run_in_every_mode_that_is_there(place, processes, modes):
    assert list(place.modes(processes)) == modes


def test_every_cell_gets_all_its_repeats_over_the_passes():
    settings = Settings(repeats=5, passes=2, processes=(1, 4))
    counted: dict[Key, int] = {}
    for session in sessions(settings, MPS):
        for key in session.keys:
            counted[key] = counted.get(key, 0) + session.repeats
    assert set(counted.values()) == {5}
    assert {(key.mode, key.processes) for key in counted if key.experiment is Experiment.SMALL} == {
        (Mode.ALONE, 1), (Mode.MPS, 1), (Mode.SEQUENTIAL, 4), (Mode.TIME_SLICING, 4), (Mode.MPS, 4),
    }  # fmt: skip


def test_the_second_pass_goes_backwards():
    first, second = ([one for one in sessions(Settings(), MPS) if one.number == n] for n in (1, 2))
    assert [one.keys for one in first] == [one.keys for one in reversed(second)]


def test_a_pass_without_repeats_is_none():
    assert {one.number for one in sessions(Settings(repeats=1, passes=2), GPU)} == {1}


def test_requests_are_not_made_one_after_the_other():
    keys = [key for one in sessions(Settings(), MPS) for key in one.keys]
    assert (Experiment.INFERENCE, Mode.SEQUENTIAL) not in {(key.experiment, key.mode) for key in keys}


def test_only_what_was_asked_for_is_measured():
    assert sessions(Settings(experiments=("memory",)), GPU) == ()
    assert guard_sessions(Settings(experiments=("inference",), guard=True)) == ()
    assert guard_sessions(Settings()) == ()


def test_with_and_without_the_guard_take_turns():
    modes = [one.mode for one in guard_sessions(Settings(guard=True, repeats=3))]
    without, with_it = Mode.WITHOUT_GUARD, Mode.WITH_GUARD
    assert modes == [without, with_it, with_it, without, without, with_it]


def test_without_mps_no_daemon_is_found_even_at_the_default_place(monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/somebody-elses")
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")
    plain = MPS.environment(Mode.TIME_SLICING)
    assert plain["CUDA_MPS_PIPE_DIRECTORY"] == NO_DAEMON
    assert not Path(NO_DAEMON).exists()
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in plain
    assert plain["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert MPS.environment(Mode.MPS)["CUDA_MPS_PIPE_DIRECTORY"] == str(MPS.pipe)


def test_under_mig_everybody_has_a_device_and_otherwise_all_have_one():
    devices = [MIG.environment(Mode.MIG, number)["CUDA_VISIBLE_DEVICES"] for number in range(2)]
    assert devices == ["MIG-0", "MIG-1"]
    assert MIG.environment(Mode.TIME_SLICING, 1)["CUDA_VISIBLE_DEVICES"] == "MIG-0"


def test_the_guard_is_on_the_path_of_its_own_mode_and_off_in_every_other(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/the/image")
    place = Place(device="GPU-0", guard=Path("/guard"), memory_bytes=100, share_bytes=50)
    guarded, plain = place.environment(Mode.WITH_GUARD), place.environment(Mode.WITHOUT_GUARD)
    assert guarded["PYTHONPATH"] == "/guard:/the/image"
    assert (guarded["PARTAGE_MEMORY_BYTES"], guarded["PARTAGE_TOTAL_BYTES"]) == ("50", "100")
    assert guarded["PARTAGE_GUARD"] != "off"
    assert plain["PARTAGE_GUARD"] == "off"
    assert plain["PYTHONPATH"] == "/the/image"

"""Whole runs on the stand-ins, as a person starts them. What only a GPU does is contradicted there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partage.units import GIB
from tests.edges.cdi.limit_hook.node import SOURCE, built_hook
from tests.on_gpu.conftest import Machine
from tools.on_gpu.rows import ROWS
from tools.on_gpu.steps import STEPS

pytestmark = pytest.mark.xdist_group("on-gpu")
LOOKS = "driver,compare,record,exporter,geometry"
CHANGES = "change-mode,change-slices,change-mig"
SEEN, CONTRADICTED, NOT_HERE = "seen", "contradicted", "not-possible-here"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="settings of a GPU are root's")


@pytest.mark.real
def test_what_only_looks_sees_what_the_driver_says(machine: Machine):
    machine.run("--only", LOOKS)
    found = machine.findings()
    for row in (
        "discovery",
        "beside-smi",
        "record",
        "exporter",
        "footprint",
        "geometry",
        "numa",
        "slices-list",
    ):
        assert found[row][0] == SEEN, found[row]
    assert machine.left() == []
    assert "| seen: 22 of 22 fields are the same" in (machine.folder / "hardware.md").read_text()


@pytest.mark.real
def test_a_field_that_nvidia_smi_says_otherwise_is_named(machine: Machine):
    machine.answers(memory__total="81558", vbios_version="96.00.1")
    machine.run("--only", "compare")
    verdict, words = machine.findings()["beside-smi"]
    assert verdict == CONTRADICTED
    assert "memory.total: 81559 here, 81558 by nvidia-smi" in words
    assert "vbios_version" in words


@pytest.mark.real
@root_only
def test_memory_limits_are_seen_where_the_driver_has_them(machine: Machine, tmp_path: Path):
    """On a node with cgroups of version 2, which this one may have beside others, and the compiled hook.

    The stand-in for CUDA has 8 GiB and no limit: that all is kept only shows that each attack is tried. With
    60 GiB it gives more than a share.
    """
    machine.run("--only", "limits,limits-hold")
    for row in ("limits", "limits-hold"):
        verdict, words = machine.findings()[row]
        assert (verdict, "driver branch 550 has no memory limits" in words) == (NOT_HERE, True), words
    machine.node.write(driver="615.71.09", **{"gpu.0.limits": "misc"})
    compiled = shutil.copytree(SOURCE, tmp_path / "hook")
    built_hook(compiled)
    mounted = f'mount -t cgroup2 cgroup2 /sys/fs/cgroup && mount --bind {compiled} {SOURCE} && exec "$@"'
    unshared = ("unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh")
    machine.command = (*unshared, *machine.command)
    machine.run("--only", "limits,limits-hold", "--again")
    assert machine.findings()["limits"] == (SEEN, "the memory of a cgroup can be limited; misc counts it")
    verdict, words = machine.findings()["limits-hold"]
    assert (verdict, words.count(" kept: ")) == (SEEN, 7), words
    machine.run("--only", "limits-hold", "--again", STUB_BYTES=str(60 * GIB))
    verdict, words = machine.findings()["limits-hold"]
    assert (verdict, "limit-at-once broken: it got " in words) == (CONTRADICTED, True), words


@root_only
def test_changes_are_seen_and_put_back(machine: Machine):
    machine.run("--only", CHANGES, "--change")
    found = machine.findings()
    assert found["slices-set"][0] == SEEN
    assert found["mig-change"] == (SEEN, "1g.10gb, 1g.10gb")
    assert found["mode-lost"] == (SEEN, "after the last session of NVML had ended: Default")
    assert found["exclusive-process"] == (CONTRADICTED, "a second process got a context, too")
    assert found["mig-processes"] == (CONTRADICTED, "0 of 2 processes were listed")
    machine.run("--only", "driver,compare")  # field by field, as before
    assert machine.findings()["beside-smi"][0] == SEEN
    assert machine.interval() == "Timeslice: Default"
    assert machine.left() == []


@pytest.mark.real
def test_without_change_nothing_is_changed(machine: Machine):
    machine.run("--only", f"driver,{CHANGES}")
    assert [run["step"] for run in machine.document()["runs"]] == ["driver"]
    log = (machine.node.root / "nvidia-smi.log").read_text()
    assert "--set-timeslice" not in log


def waits(machine: Machine, process: subprocess.Popen[str], sign: Path) -> None:
    """Until a change is half made."""
    ends = time.monotonic() + 60
    while not sign.exists():
        assert time.monotonic() < ends
        assert process.poll() is None
        time.sleep(0.02)


@pytest.mark.real
@root_only
def test_a_run_that_is_killed_in_a_change_is_put_back_by_the_next_one(machine: Machine):
    wait, sign = machine.node.root / "smi.json.wait", machine.node.root / "smi.json.waits"
    wait.touch()
    process = machine.start("--only", "change-slices", "--change")
    waits(machine, process, sign)
    process.kill()
    process.communicate()
    wait.unlink()
    assert machine.interval() == "Timeslice: Short"
    (begun,) = machine.document()["runs"]
    assert begun["outcome"] == "interrupted"

    said = machine.run("--only", "driver")
    assert "what it changed is put back" in said
    assert machine.interval() == "Timeslice: Default"
    assert machine.left() == []
    machine.run("--only", "change-slices", "--change")
    assert machine.findings()["slices-set"][0] == SEEN, "it is done after all"


@pytest.mark.real
@root_only
def test_a_run_that_is_killed_with_mig_mode_on_is_put_back_by_the_next_one(machine: Machine):
    machine.node.write(**{"hang.nvmlGpuInstanceCreateComputeInstance": 60_000})
    process = machine.start("--only", "change-mig", "--change")
    waits(machine, process, machine.node.library.with_name("hangs.txt"))
    process.kill()
    process.communicate()
    machine.node.write(**{"hang.nvmlGpuInstanceCreateComputeInstance": None})
    said = machine.run("--only", "record")
    assert "what it changed is put back" in said
    (recorded,) = [run for run in machine.document()["runs"] if run["step"] == "record"]
    assert recorded["data"]["show"]["gpus"][0]["migMode"] == {"current": False, "pending": False}
    assert machine.left() == []


@pytest.mark.real
@root_only
def test_a_run_that_is_asked_to_end_puts_back_at_once(machine: Machine):
    wait, sign = machine.node.root / "smi.json.wait", machine.node.root / "smi.json.waits"
    wait.touch()
    process = machine.start("--only", "change-slices", "--change")
    waits(machine, process, sign)
    wait.unlink()
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert machine.interval() == "Timeslice: Default"
    assert machine.left() == []


@pytest.mark.real
def test_two_runs_at_once_are_one_too_many(machine: Machine):
    machine.node.write(**{"hang.nvmlDeviceGetName": 3000})
    process = machine.start("--only", "driver")
    waits(machine, process, machine.node.library.with_name("hangs.txt"))
    assert "another run is at work" in machine.run("--only", "driver", code=3)
    machine.node.write(**{"hang.nvmlDeviceGetName": None})
    process.communicate(timeout=120)
    assert machine.left() == []


@pytest.mark.real
def test_it_goes_on_where_it_was_and_does_nothing_twice(machine: Machine):
    machine.run("--only", "driver,geometry")
    machine.run("--only", "driver,compare,geometry")
    assert [run["step"] for run in machine.document()["runs"]] == ["driver", "geometry", "compare"]
    machine.run("--only", "geometry", "--again")
    assert [run["step"] for run in machine.document()["runs"]][-1] == "geometry"


@pytest.mark.real
def test_on_another_machine_what_is_its_own_is_done_anew(machine: Machine):
    machine.run("--only", "driver,geometry")
    machine.node.write(**{"gpu.0.uuid": "GPU-99999999-1111-2222-3333-444444444444"})
    machine.answers(uuid="GPU-99999999-1111-2222-3333-444444444444")
    assert "this result came from another machine" in machine.run("--only", "driver,geometry")
    runs = [(run["step"], run["machine"]) for run in machine.document()["runs"]]
    assert runs == [("driver", 0), ("geometry", 0), ("driver", 1)], (
        "geometry is so on every card of this model"
    )
    machine.node.write(driver="575.57.08")
    machine.answers(uuid="GPU-99999999-1111-2222-3333-444444444444", driver_version="575.57.08")
    machine.run("--only", "driver,geometry")
    assert [run["machine"] for run in machine.document()["runs"]][3:] == [2, 2], (
        "and another driver another matter"
    )


@pytest.mark.real
def test_a_driver_that_lacks_things_loses_only_their_rows(machine: Machine):
    machine.node.lacks("nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetGpuFabricInfoV")
    (machine.node.root / "usr/bin/nvidia-smi").unlink()
    (machine.node.library.parent / "libcuda.so.1").unlink()
    machine.run("--only", f"{LOOKS},mps,mps-environment,time-slicing,guard")
    found = machine.findings()
    assert found["discovery"][0] == found["record"][0] == found["geometry"][0] == SEEN
    for row, takes in {
        "beside-smi": "an nvidia-smi that answers",
        "slices-list": "time slices that can be set",
        "control-program": "libcuda.so.1",
        "mps-environment": "nvidia-cuda-mps-control",
        "time-slicing": "libcuda.so.1",
        "guard": "libcuda.so.1",
    }.items():
        verdict, words = found[row]
        assert verdict == NOT_HERE, row
        assert takes in words
    assert machine.left() == []


@pytest.mark.real
def test_a_gpu_that_others_use_gets_no_tenants(machine: Machine):
    machine.node.write(**{"gpu.0.process.0": f"{os.getpid()} -1 -1 1000 C"})
    machine.run("--only", "driver,time-slicing,bench,mps")
    found = machine.findings()
    for row in ("time-slicing", "bench", "control-program"):
        assert found[row][0] == NOT_HERE
        assert "a GPU that nothing else uses" in found[row][1]


@pytest.mark.real
def test_tenants_work_beside_each_other(machine: Machine):
    machine.run("--only", "time-slicing", STUB_BYTES=str(80 * GIB))
    assert machine.findings()["time-slicing"][0] == SEEN
    machine.run("--only", "time-slicing", "--again")  # 8 GiB: the second piece does not fit
    assert machine.findings()["time-slicing"][0] == CONTRADICTED


@pytest.mark.real
def test_bench_needs_nothing_but_the_driver(machine: Machine):
    """``partage bench --engine cuda``: pi by a kernel of its own, and no model."""
    save = machine.folder / "bench.json"
    small = (
        "--small",
        "65536",
        "--saturating",
        "65536",
        "--seconds",
        "0.02",
        "--repeats",
        "1",
        "--processes",
        "1,2",
    )
    argv = [sys.executable, "-m", "partage", "bench", "--engine", "cuda", *small, "--save", str(save)]
    where = ["--driver-root", str(machine.node.root)]
    subprocess.run([*argv, *where], env=machine.environment(), check=True, capture_output=True, cwd="/")
    cells = json.loads(save.read_text())["cells"]
    assert {(cell["experiment"], cell["mode"]) for cell in cells} == {
        (experiment, mode)
        for experiment in ("pi-small", "pi-saturating")
        for mode in ("alone", "one-after-the-other", "time-slicing")
    }
    values = [turn["value"] for cell in cells for repeat in cell["repeats"] for turn in repeat["turns"]]
    assert values == pytest.approx([3.1416] * len(values), abs=0.05)


@pytest.mark.real
@root_only
def test_nvidias_own_control_program_is_started_and_nothing_of_it_is_left(programs: Machine):
    """Without a GPU its server ends at once."""
    programs.run("--only", "mps,mps-environment,read-only-pipe")
    found = programs.findings()
    assert found["control-program"][0] == CONTRADICTED
    assert "no MPS server" in found["control-program"][1]
    assert found["mps-environment"] == (NOT_HERE, "an MPS server, which does not start here")
    assert found["read-only-pipe"][0] == NOT_HERE
    (environment,) = [run for run in programs.document()["runs"] if run["step"] == "mps-environment"]
    assert environment["data"]["said"]["get_default_device_pinned_mem_limit 0"].strip() == "", "as recorded"
    assert programs.left() == []


def test_without_a_gpu_it_refuses(machine: Machine):
    machine.node.library.unlink()
    said = machine.run(code=4)
    assert said.startswith("error: there is no GPU to look at here: libnvidia-ml.so.1")
    assert not machine.result.exists()
    assert machine.left() == []


def test_a_gpu_that_does_not_exist_is_refused(machine: Machine):
    assert "no GPU '7' answers" in machine.run("--gpu", "7", code=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is no JSON"), ('{"kind": "Node"}', "is no result of make on-gpu")],
)
def test_a_result_that_is_none_is_left_alone(machine: Machine, text: str, words: str):
    machine.result.write_text(text)
    assert words in machine.run(code=2)
    assert machine.result.read_text() == text
    assert machine.left() == []


def test_a_journal_that_cannot_be_read_is_for_a_person(machine: Machine):
    machine.state.mkdir()
    (machine.state / "on-gpu.json").write_text("half of")
    assert "is no journal" in machine.run(code=2)
    assert (machine.state / "on-gpu.json").read_text() == "half of"


def test_every_row_has_its_step_and_every_step_its_rows():
    steps = {step.name for step in STEPS}
    assert {row.step for row in ROWS if row.step} == steps
    assert len({row.key for row in ROWS}) == len(ROWS)
    assert all(row.takes for row in ROWS if not row.step)


@pytest.mark.real
def test_a_slice_needs_room_for_its_longest_step(machine: Machine):
    assert "--minutes 2 is too short" in machine.run("--minutes", "2", code=2)
    machine.run("--minutes", "9", "--only", "geometry")
    assert json.loads(machine.result.read_text())["runs"][0]["outcome"] == "done"

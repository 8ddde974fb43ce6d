"""Settings and processes of the simulated node: what files and faults say of them, what forgets them."""

import pytest

from partage.errors import HardwareTimeout, InputError, NotFound, Unsupported
from partage.model.cgroup import Owner, SlurmStep, parse_cgroup
from partage.model.gpu import ComputeMode
from partage.model.gpu_use import ProcessKind
from partage.model.ids import ContainerId, PodUid
from partage.model.step import EndProcess, SetComputeMode, SetMigMode, SetTimeSlice
from partage.model.strategy import Interval
from partage.sim.node.faults import (
    DriverGone,
    DriverLoaded,
    FailCall,
    HideProcesses,
    LastClientLeaves,
    Occupy,
    Reboot,
    ResetGpu,
    Vacate,
)
from partage.sim.node.files.machine_file import read_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine_names import parse_machine
from partage.units import GIB

UID, CID = PodUid("0b5a1e0c-6f1e-4d3c-9b42-5c2d7f8e9a10"), ContainerId("3f" * 32)
MACHINE = """
version: partage/v1
kind: Machine
gpus:
  - {name: NVIDIA L4, time_slice: not-supported}
  - {index: 5, name: NVIDIA L4, time_slice: long, compute_mode: 3}
  - {name: NVIDIA L4, index: 2}
"""


def simulated(text=MACHINE):
    return SimulatedHardware(read_machine(text.encode(), "m.yaml"))


async def uuids(hardware):
    return [gpu.uuid for gpu in (await hardware.observe()).gpus]


async def intervals(hardware):
    return [one.interval for one in await hardware.time_slices()]


async def test_a_machine_file_says_which_slices_a_gpu_has_and_whether_it_has_any():
    hardware = simulated()
    assert await intervals(hardware) == [None, Interval.DEFAULT, Interval.LONG]
    first = (await uuids(hardware))[0]
    assert "keeps" in (await hardware.time_slices())[0].reason
    with pytest.raises(Unsupported, match="leave interval out"):
        await hardware.perform(SetTimeSlice(first, Interval.SHORT, Interval.DEFAULT))


@pytest.mark.parametrize("word", ["ages", "2", "null", "[long]"])
def test_a_slice_that_does_not_exist_is_a_problem_of_its_place(word):
    with pytest.raises(InputError) as caught:
        simulated(MACHINE.replace("long", word))
    assert [problem.path for problem in caught.value.problems] == ["gpus[1].time_slice"]


@pytest.mark.parametrize("fault", [Reboot(), ResetGpu(5), DriverLoaded()])
async def test_what_the_driver_keeps_is_forgotten_with_it_and_what_a_gpu_lacks_is_not(fault):
    hardware = simulated()
    last = (await uuids(hardware))[2]
    await hardware.inject(fault)
    assert await intervals(hardware) == [None, Interval.DEFAULT, Interval.DEFAULT]
    modes = [gpu.compute_mode for gpu in (await hardware.observe()).gpus]
    assert modes == [ComputeMode.DEFAULT] * 3
    await hardware.perform(SetTimeSlice(last, Interval.LONG, Interval.DEFAULT))


async def test_a_change_of_mig_mode_ends_compute_mode_and_slice():
    hardware = SimulatedHardware(parse_machine("1xh100-sxm5-80gb"))
    (gpu,) = await uuids(hardware)
    await hardware.perform(SetComputeMode(gpu, ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT))
    await hardware.perform(SetTimeSlice(gpu, Interval.LONG, Interval.DEFAULT))
    await hardware.perform(SetMigMode(gpu, enabled=True))
    await hardware.perform(SetMigMode(gpu, enabled=False))
    assert await intervals(hardware) == [Interval.DEFAULT]
    assert (await hardware.observe()).gpus[0].compute_mode is ComputeMode.DEFAULT


async def test_in_mig_mode_there_is_no_slice_to_set():
    hardware = SimulatedHardware(parse_machine("1xh100-sxm5-80gb"))
    (gpu,) = await uuids(hardware)
    await hardware.perform(SetMigMode(gpu, enabled=True))
    assert await intervals(hardware) == [None]
    with pytest.raises(Unsupported, match="MIG mode"):
        await hardware.perform(SetTimeSlice(gpu, Interval.LONG, Interval.DEFAULT))


async def test_processes_are_those_with_a_pid_and_belong_to_whom_the_fault_says():
    hardware = simulated()
    await hardware.inject(Occupy(5, "train", pid=4711, memory_bytes=GIB, container=CID, pod=UID))
    await hardware.inject(Occupy(5, "nvidia-cuda-mps-server", pid=4712, memory_bytes=2 * GIB))
    await hardware.inject(Occupy(5, "nobody knows"))
    processes = await hardware.processes()
    train, server = processes.rows
    assert parse_cgroup(train.cgroups) == Owner(UID, CID, "containerd")
    assert server.kind is ProcessKind.MPS_SERVER
    assert [one.used_bytes for one in processes.memory] == [0, 0, 3 * GIB]
    await hardware.inject(Occupy(5, "step", pid=4713, job="17"))
    (step,) = (row for row in (await hardware.processes()).rows if row.pid == 4713)
    assert parse_cgroup(step.cgroups) == Owner(job=SlurmStep("17", "batch", "0"))
    await hardware.inject(Vacate(5, "step"))
    await hardware.inject(Vacate(5, "train"))
    assert [row.pid for row in (await hardware.processes()).rows] == [4712]


async def test_an_ended_process_leaves_every_gpu_and_its_pid_to_others():
    hardware = simulated()
    for gpu in (2, 5):
        await hardware.inject(Occupy(gpu, "train", pid=4711, container=CID))
    row, twin = (await hardware.processes()).rows
    assert row.start == twin.start
    step = EndProcess(row.gpu, 4711, row.start, CID)
    await hardware.perform(step)
    assert await hardware.uses() == ()
    await hardware.inject(Occupy(2, "other", pid=4711, container=CID))
    with pytest.raises(NotFound, match="another process has this pid"):
        await hardware.perform(step)


async def test_a_node_that_hides_processes_lists_none_and_says_why():
    hardware = simulated()
    await hardware.inject(Occupy(5, "train", pid=4711, memory_bytes=GIB))
    await hardware.inject(HideProcesses())
    processes = await hardware.processes()
    assert processes.rows == ()
    assert processes.memory[2].used_bytes == GIB
    assert "cannot be seen" in processes.hidden
    await hardware.inject(HideProcesses(on=False))
    assert len((await hardware.processes()).rows) == 1


async def test_calls_for_processes_and_slices_can_fail_too():
    hardware = simulated()
    await hardware.inject(FailCall("processes", HardwareTimeout("simulated")))
    await hardware.inject(FailCall("time-slices", HardwareTimeout("simulated")))
    with pytest.raises(HardwareTimeout):
        await hardware.processes()
    with pytest.raises(HardwareTimeout):
        await hardware.time_slices()


async def test_without_a_driver_a_mode_is_nobodys_to_set():
    hardware = simulated()
    gpu = (await uuids(hardware))[1]
    await hardware.inject(DriverGone())
    await hardware.inject(DriverLoaded())
    await hardware.perform(SetComputeMode(gpu, ComputeMode.PROHIBITED, ComputeMode.DEFAULT))
    assert (await hardware.observe()).gpus[1].compute_mode is ComputeMode.PROHIBITED


@pytest.mark.parametrize(
    ("persistence", "used", "lost"),
    [("false", False, True), ("true", False, False), ("null", False, False), ("false", True, False)],
)
async def test_a_gpu_without_persistence_mode_forgets_its_settings_with_its_last_client(
    persistence, used, lost
):
    hardware = simulated(
        "gpus: [{name: NVIDIA L4, time_slice: long, compute_mode: 3, persistence: " + persistence + "}]"
    )
    if used:
        await hardware.inject(Occupy(0, "nv-hostengine"))
    await hardware.inject(LastClientLeaves(0))
    (gpu,) = (await hardware.observe()).gpus
    mode, interval = (
        (ComputeMode.DEFAULT, Interval.DEFAULT) if lost else (ComputeMode.EXCLUSIVE_PROCESS, Interval.LONG)
    )
    assert (gpu.compute_mode, await intervals(hardware)) == (mode, [interval])

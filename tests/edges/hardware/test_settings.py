"""What every implementation of the port must do for compute modes, time slices and processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from partage.edges.hardware.port import Hardware
from partage.errors import (
    DriverUnavailable,
    GpuInUse,
    GpuLost,
    HardwareError,
    NotFound,
    NotPermitted,
    StateMismatch,
    Unsupported,
)
from partage.model.gpu import ComputeMode, Gpu
from partage.model.gpu_use import GpuProcess, ProcessKind
from partage.model.ids import ContainerId
from partage.model.step import EndProcess, SetComputeMode, SetMigMode, SetTimeSlice, Step, TimeSlice, reverse
from partage.model.strategy import Interval
from partage.units import GIB
from tests.edges.hardware.conftest import Subject, Work

LIMIT_S = 10.0
CID, OTHER = ContainerId("3f" * 32), ContainerId("a0" * 32)
DEFAULT, EXCLUSIVE = ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS


async def gpu_of(hardware: Hardware, index: int = 1) -> Gpu:
    return next(gpu for gpu in (await hardware.observe()).gpus if gpu.index == index)


async def refuses(hardware: Hardware, step: Step, kind: type[HardwareError]) -> HardwareError:
    """The act is refused with exactly that error, and the node is as it was."""
    before = await hardware.observe(), await hardware.time_slices()
    with pytest.raises(kind) as caught:
        await hardware.perform(step)
    assert type(caught.value) is kind
    assert (await hardware.observe(), await hardware.time_slices()) == before
    return caught.value


async def rows_of(subject: Subject) -> tuple[GpuProcess, ...]:
    return (await subject.hardware.processes()).rows


async def put(subject: Subject, *works: Work) -> None:
    if subject.work is None:
        pytest.skip("nothing here can put a process on a GPU")
    for work in works:
        await subject.work(work)


# --- compute mode --------------------------------------------------------------------------------


async def test_the_compute_mode_is_set_seen_and_given_back(acting: Subject) -> None:
    hardware = acting.hardware
    before = await hardware.observe()
    step = SetComputeMode(before.gpus[1].uuid, EXCLUSIVE, DEFAULT)
    assert await hardware.perform(step) is None
    after = await hardware.observe()
    assert [gpu.compute_mode for gpu in after.gpus] == [DEFAULT, EXCLUSIVE, DEFAULT, DEFAULT]
    await hardware.perform(step)  # it is so already
    back = reverse(step)
    assert back is not None
    await hardware.perform(back)
    assert await hardware.observe() == before


async def test_a_mode_that_is_not_the_one_before_stays(acting: Subject) -> None:
    gpu = (await gpu_of(acting.hardware)).uuid
    await refuses(acting.hardware, SetComputeMode(gpu, EXCLUSIVE, ComputeMode.PROHIBITED), StateMismatch)


async def test_whose_context_is_in_the_way_of_exclusive_mode_is_named(acting: Subject) -> None:
    await put(acting, Work(1, 4711, "train"), Work(2, 4712, "elsewhere"))
    gpu = (await gpu_of(acting.hardware)).uuid
    error = await refuses(acting.hardware, SetComputeMode(gpu, EXCLUSIVE, DEFAULT), GpuInUse)
    assert isinstance(error, GpuInUse)
    assert error.uses == ("process train (pid 4711)",)


async def test_an_mps_server_and_its_clients_are_not_in_the_way(acting: Subject) -> None:
    await put(acting, Work(1, 4711, "nvidia-cuda-mps-server"), Work(1, 4712, mps=True))
    gpu = (await gpu_of(acting.hardware)).uuid
    await acting.hardware.perform(SetComputeMode(gpu, EXCLUSIVE, DEFAULT))
    assert (await gpu_of(acting.hardware)).compute_mode is EXCLUSIVE


async def test_nothing_blocks_default_mode(acting: Subject) -> None:
    gpu = (await gpu_of(acting.hardware)).uuid
    await acting.hardware.perform(SetComputeMode(gpu, EXCLUSIVE, DEFAULT))
    await put(acting, Work(1, 4711))
    await acting.hardware.perform(SetComputeMode(gpu, DEFAULT, EXCLUSIVE))
    assert (await gpu_of(acting.hardware)).compute_mode is DEFAULT


async def test_a_gpu_in_mig_mode_has_no_compute_mode_to_set(acting: Subject) -> None:
    gpu = (await gpu_of(acting.hardware)).uuid
    await acting.hardware.perform(SetMigMode(gpu, enabled=True))
    await refuses(acting.hardware, SetComputeMode(gpu, EXCLUSIVE, DEFAULT), Unsupported)


async def test_a_mode_that_the_driver_has_given_up_is_unsupported(acting: Subject) -> None:
    gpu = (await gpu_of(acting.hardware)).uuid
    await refuses(acting.hardware, SetComputeMode(gpu, ComputeMode.EXCLUSIVE_THREAD, DEFAULT), Unsupported)


# --- time slices ---------------------------------------------------------------------------------


async def test_the_time_slice_is_set_seen_and_given_back(acting: Subject) -> None:
    hardware = acting.hardware
    uuids = [gpu.uuid for gpu in (await hardware.observe()).gpus]
    assert await hardware.time_slices() == tuple(TimeSlice(uuid, Interval.DEFAULT) for uuid in uuids)
    for step in (
        SetTimeSlice(uuids[1], Interval.SHORT, Interval.DEFAULT),
        SetTimeSlice(uuids[1], Interval.LONG, Interval.SHORT),
    ):
        assert await hardware.perform(step) is None
        await hardware.perform(step)  # it is so already
        slices = [one.interval for one in await hardware.time_slices()]
        assert slices == [Interval.DEFAULT, step.interval, Interval.DEFAULT, Interval.DEFAULT]
    await hardware.perform(SetTimeSlice(uuids[1], Interval.DEFAULT, Interval.LONG))
    assert {one.interval for one in await hardware.time_slices()} == {Interval.DEFAULT}


async def test_a_slice_that_is_not_the_one_before_stays(acting: Subject) -> None:
    gpu = (await gpu_of(acting.hardware)).uuid
    await refuses(acting.hardware, SetTimeSlice(gpu, Interval.LONG, Interval.SHORT), StateMismatch)


@pytest.mark.parametrize(
    "act",
    [
        lambda gpu: SetComputeMode(gpu, EXCLUSIVE, DEFAULT),
        lambda gpu: SetTimeSlice(gpu, Interval.LONG, Interval.DEFAULT),
        lambda gpu: EndProcess(gpu, 4711, 1, CID),
    ],
)
async def test_an_unknown_gpu_is_not_found(acting: Subject, act: Callable[[str], Step]) -> None:
    await refuses(acting.hardware, act("GPU-of-another-node"), NotFound)


async def test_a_lost_gpu_keeps_its_settings_to_itself(acting: Subject) -> None:
    if acting.lose is None:
        pytest.skip("nothing here can lose a GPU")
    gpu = (await gpu_of(acting.hardware)).uuid
    await acting.lose(1)
    assert gpu not in {one.gpu for one in await acting.hardware.time_slices()}
    await refuses(acting.hardware, SetComputeMode(gpu, EXCLUSIVE, DEFAULT), GpuLost)
    await refuses(acting.hardware, SetTimeSlice(gpu, Interval.LONG, Interval.DEFAULT), GpuLost)


# --- processes -----------------------------------------------------------------------------------


async def test_an_idle_node_has_no_processes_and_all_of_it_can_be_seen(acting: Subject) -> None:
    uuids = [gpu.uuid for gpu in (await acting.hardware.observe()).gpus]
    processes = await acting.hardware.processes()
    assert processes.rows == ()
    assert acting.work is None or processes.hidden == ""
    assert [(one.gpu, one.used_bytes) for one in processes.memory] == [(uuid, 0) for uuid in uuids]


async def test_who_works_on_a_gpu_is_listed_with_memory_and_container(acting: Subject) -> None:
    await put(
        acting,
        Work(1, 4711, "train", 3 * GIB, CID),
        Work(1, 4712, "notebook", None),
        Work(2, 4711, "train", GIB, CID),
        Work(3, 50, "client", 2, OTHER, mps=True),
    )
    uuids = [gpu.uuid for gpu in (await acting.hardware.observe()).gpus]
    rows = await rows_of(acting)
    assert [(row.gpu, row.pid, row.name, row.used_bytes, row.kind) for row in rows] == [
        (uuids[1], 4711, "train", 3 * GIB, ProcessKind.COMPUTE),
        (uuids[1], 4712, "notebook", None, ProcessKind.COMPUTE),
        (uuids[2], 4711, "train", GIB, ProcessKind.COMPUTE),
        (uuids[3], 50, "client", 2, ProcessKind.MPS_CLIENT),
    ]
    assert [row.cgroups for row in rows] == [
        (f"0::/docker/{CID}",),
        ("0::/",),
        (f"0::/docker/{CID}",),
        (f"0::/docker/{OTHER}",),
    ]
    assert all(row.start is not None and row.uid is not None for row in rows)
    assert {(row.device, row.gi_id, row.ci_id) for row in rows} == {(None, None, None)}


async def test_without_a_driver_there_is_no_answer(acting: Subject) -> None:
    if acting.driver_gone is None:
        pytest.skip("nothing here can unload the driver")
    await acting.driver_gone()
    for call in (acting.hardware.processes, acting.hardware.time_slices):
        with pytest.raises(DriverUnavailable):
            await call()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that can be ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


async def working(subject: Subject, child: subprocess.Popen[bytes], *, mps: bool = False) -> EndProcess:
    """The child works on GPU 1, in a container; the act that ends it."""
    await put(subject, Work(1, child.pid, "train", GIB, CID, mps))
    (row,) = await rows_of(subject)
    assert row.start is not None
    return EndProcess(row.gpu, row.pid, row.start, CID)


async def test_a_process_that_is_meant_is_ended(acting: Subject, child: subprocess.Popen[bytes]) -> None:
    step = await working(acting, child)
    async with asyncio.timeout(LIMIT_S):
        assert await acting.hardware.perform(step) is None
    assert acting.leave is not None
    await acting.leave(child.pid)
    assert await rows_of(acting) == ()
    await refuses(acting.hardware, step, NotFound)


async def test_a_process_that_is_not_meant_is_left_alone(
    acting: Subject, child: subprocess.Popen[bytes]
) -> None:
    step = await working(acting, child)
    other_gpu = (await gpu_of(acting.hardware, 2)).uuid
    for wrong, kind in (
        (EndProcess(step.gpu, step.pid, step.start + 1, CID), NotFound),
        (EndProcess(step.gpu, step.pid, step.start, OTHER), NotFound),
        (EndProcess(step.gpu, step.pid, step.start, ContainerId("")), NotFound),
        (EndProcess(other_gpu, step.pid, step.start, CID), NotFound),
        (EndProcess(step.gpu, 1, step.start, CID), NotPermitted),
        (EndProcess(step.gpu, -1, step.start, CID), NotPermitted),
        (EndProcess(step.gpu, 2**40, step.start, CID), NotFound),
    ):
        await refuses(acting.hardware, wrong, kind)
    assert child.poll() is None
    assert len(await rows_of(acting)) == 1


async def test_a_client_of_mps_is_not_ended_by_a_signal(
    acting: Subject, child: subprocess.Popen[bytes]
) -> None:
    step = await working(acting, child, mps=True)
    error = await refuses(acting.hardware, step, Unsupported)
    assert "terminate_client" in str(error)
    assert child.poll() is None

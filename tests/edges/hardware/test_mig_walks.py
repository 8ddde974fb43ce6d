"""How often NVML is called on a node of many MIG devices, and that nothing is missed for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.model.geometry import Placement
from partage.model.gpu import Gpu
from partage.model.gpu_use import GpuProcess
from partage.model.ids import MigUuid
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    SetMigMode,
)
from partage.units import GIB
from tests.edges.hardware.stub import StubNode

GPUS, DEVICES = 8, 7
FIRST = StubNode.uuid(0)
T = TypeVar("T")


@pytest.fixture
async def hardware(node: StubNode) -> AsyncIterator[NvmlHardware]:
    """Eight GPUs that keep MIG mode and instances themselves."""
    node.add_h100s(GPUS)
    for index in range(GPUS):
        node.with_live_mig(index)
    opened = NvmlHardware(host=node.host)
    yield opened
    await opened.close()


@pytest.fixture
async def other(node: StubNode) -> AsyncIterator[NvmlHardware]:
    """Another process's session: it knows nothing of what ``hardware`` remembers."""
    opened = NvmlHardware(host=node.host)
    yield opened
    await opened.close()


async def make(hardware: NvmlHardware, gpu: int, start: int) -> Created:
    uuid, place = StubNode.uuid(gpu), Placement(start, 1)
    await hardware.perform(CreateInstance(uuid, "1g.10gb", place))
    made = await hardware.perform(CreateCompute(uuid, "1g.10gb", place, "1g.10gb"))
    assert made is not None
    return made


async def destroy(hardware: NvmlHardware, gpu: int, start: int) -> None:
    uuid, place = StubNode.uuid(gpu), Placement(start, 1)
    await hardware.perform(DestroyCompute(uuid, "1g.10gb", place, "1g.10gb"))
    await hardware.perform(DestroyInstance(uuid, "1g.10gb", place))


async def filled(hardware: NvmlHardware, gpus: int = GPUS) -> None:
    for gpu in range(gpus):
        await hardware.perform(SetMigMode(StubNode.uuid(gpu), enabled=True))
        for start in range(DEVICES):
            await make(hardware, gpu, start)


async def cost(node: StubNode, call: Callable[[], Awaitable[T]]) -> int:
    before = node.calls()
    await call()
    return node.calls() - before


async def first_gpu(hardware: NvmlHardware) -> Gpu:
    return (await hardware.observe()).gpus[0]


async def row_of(hardware: NvmlHardware, pid: int) -> GpuProcess:
    (row,) = [row for row in (await hardware.processes()).rows if row.pid == pid]
    return row


async def test_a_second_look_costs_a_fraction_of_the_first(
    node: StubNode, hardware: NvmlHardware, other: NvmlHardware
) -> None:
    await filled(other)
    for gpu in range(GPUS):
        node.works(100 + gpu, gpu=gpu, used=GIB, part="7 0")
    first = await cost(node, hardware.observe)
    second = await cost(node, hardware.observe)
    # A GPU: handle, UUID, MIG mode, compute mode, fields, persistence, fabric, number of slots, 7 handles,
    # 7 UUIDs.
    # The node: two versions, and the number of GPUs.
    assert second == 3 + GPUS * (8 + 2 * DEVICES)
    assert first > 5 * second
    # The first call has to see that the lists of a GPU name the instances of processes.
    await hardware.uses()
    # A GPU: handle, UUID, MIG mode, three lists, of which one is not empty and read twice, one UUID.
    assert await cost(node, hardware.uses) == 3 + GPUS * (3 + 4 + 1)
    assert await cost(node, hardware.processes) == 3 + GPUS * (3 + 4 + 1 + 1)


async def test_what_others_make_and_destroy_is_seen_at_the_next_look(
    hardware: NvmlHardware, other: NvmlHardware
) -> None:
    await filled(other, 1)
    before = (await first_gpu(hardware)).mig_devices
    assert len(before) == DEVICES
    await destroy(other, 0, 3)
    rest = (await first_gpu(hardware)).mig_devices
    assert [device.known_placement.start for device in rest] == [0, 1, 2, 4, 5, 6]
    made = await make(other, 0, 3)
    devices = (await first_gpu(hardware)).mig_devices
    # The new device has the handle and the ids of the one before; only its UUID is another one.
    assert {device.uuid for device in devices} - {device.uuid for device in before} == {made.uuid}
    await other.perform(SetMigMode(StubNode.uuid(1), enabled=True))
    await other.perform(CreateInstance(StubNode.uuid(1), "3g.40gb", Placement(4, 4)))
    gpu = (await hardware.observe()).gpus[1]
    assert [(one.profile, one.placement) for one in gpu.empty_instances] == [("3g.40gb", Placement(4, 4))]


async def test_an_empty_instance_that_others_leave_in_a_full_gpu_is_seen(
    hardware: NvmlHardware, other: NvmlHardware
) -> None:
    await filled(other, 1)
    assert (await first_gpu(hardware)).empty_instances == ()
    await other.perform(DestroyCompute(FIRST, "1g.10gb", Placement(2, 1), "1g.10gb"))
    gpu = await first_gpu(hardware)
    assert [one.placement for one in gpu.empty_instances] == [Placement(2, 1)]


async def test_a_process_belongs_to_the_device_that_is_there_now(
    node: StubNode, hardware: NvmlHardware, other: NvmlHardware
) -> None:
    await filled(other, 1)
    node.works(42, used=GIB, part="7 0")
    before = MigUuid(str((await row_of(hardware, 42)).device))
    assert (await row_of(hardware, 42)).device == before
    node.leaves(42)
    await destroy(other, 0, 0)
    made = await make(other, 0, 0)
    assert (made.gi_id, made.ci_id) == (7, 0)
    assert made.uuid != before
    node.works(43, used=GIB, part="7 0")
    assert (await row_of(hardware, 43)).device == made.uuid


@pytest.mark.parametrize("lists", [None, "split", "unnamed"])
async def test_processes_are_found_however_the_driver_lists_them(
    node: StubNode, hardware: NvmlHardware, other: NvmlHardware, lists: str | None
) -> None:
    """split: the list of a GPU lacks those on MIG devices. unnamed: it has them without their instances."""
    await filled(other, 1)
    node.works(42, used=GIB, part="7 0")
    assert (await row_of(hardware, 42)).gi_id == 7
    node.write(lists=lists)
    node.works(43, used=GIB, part="8 0", kinds="M")
    if lists != "split":  # a driver does not begin to do so while it runs
        assert [(row.pid, row.gi_id) for row in (await hardware.processes()).rows] == [(42, 7), (43, 8)]
    fresh = NvmlHardware(host=node.host)
    try:
        for _ in range(2):
            assert [(row.pid, row.gi_id) for row in (await fresh.processes()).rows] == [(42, 7), (43, 8)]
    finally:
        await fresh.close()


async def test_without_root_each_mig_device_is_asked_for_its_processes(
    node: StubNode, hardware: NvmlHardware, other: NvmlHardware
) -> None:
    await filled(other, 1)
    node.works(42, used=GIB, part="7 0")
    node.write(unprivileged=1)
    assert {device.placement for device in (await first_gpu(hardware)).mig_devices} == {None}
    assert (await row_of(hardware, 42)).gi_id == 7

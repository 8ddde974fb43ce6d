"""Who has GPUs open: the driver's lists and the files below a /proc of our own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.errors import DriverUnavailable
from partage.model.geometry import Placement
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import MigUuid
from partage.model.step import CreateCompute, CreateInstance, SetMigMode
from tests.edges.hardware.stub import StubNode

FIRST, SECOND = StubNode.uuid(0), StubNode.uuid(1)
HIGH = Placement(4, 4)


@pytest.fixture
async def hardware(node: StubNode) -> AsyncIterator[NvmlHardware]:
    """Two GPUs; their device files are /dev/nvidia1 and /dev/nvidia0."""
    node.add_h100s(2).with_live_mig(0)
    opened = NvmlHardware(host=node.host)
    yield opened
    await opened.close()


@pytest.fixture
async def device(node: StubNode, hardware: NvmlHardware) -> str:
    """The first GPU has a 3g.40gb in two parts; the UUID of the smaller one."""
    await hardware.perform(SetMigMode(FIRST, enabled=True))
    await hardware.perform(CreateInstance(FIRST, "3g.40gb", HIGH))
    made = await hardware.perform(CreateCompute(FIRST, "3g.40gb", HIGH, "1c.3g.40gb"))
    assert made is not None
    node.file(
        "proc/driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu1/gi2/access 21\ngpu1/gi2/ci0/access 22\ngpu1/gi2/ci1/access 23\n",
    )
    return made.uuid


async def test_a_quiet_node_has_no_uses(hardware: NvmlHardware) -> None:
    assert await hardware.uses() == ()


async def test_a_process_that_driver_and_files_both_show_is_one_use(
    node: StubNode, hardware: NvmlHardware
) -> None:
    node.process(42, "python3", "/dev/nvidia1", "/dev/nvidiactl", "/dev/null", listed="-1 -1")
    assert await hardware.uses() == (GpuUse(FIRST, UseKind.PROCESS, "python3", 42),)


async def test_the_device_file_is_found_by_its_minor_and_not_by_the_index(
    node: StubNode, hardware: NvmlHardware
) -> None:
    node.process(42, "python3", "/dev/nvidia0", "/host/dev/nvidia0", "/dev/nvidia7", "/dev/nvidia-uvm")
    assert await hardware.uses() == (GpuUse(SECOND, UseKind.PROCESS, "python3", 42),)


@pytest.mark.parametrize(
    "name",
    ["nvidia-persiste", "nv-hostengine", "dcgm", "dcgm-exporter", "nvsm", "nvsm_core", "nv-fabricmanage"],
)
async def test_who_only_watches_is_a_monitor(node: StubNode, hardware: NvmlHardware, name: str) -> None:
    node.process(7, name, "/dev/nvidia0", "/dev/nvidia1")
    assert await hardware.uses() == tuple(GpuUse(gpu, UseKind.MONITOR, name, 7) for gpu in (FIRST, SECOND))


async def test_a_process_on_a_mig_device_holds_that_device_and_not_the_gpu(
    node: StubNode, hardware: NvmlHardware, device: MigUuid
) -> None:
    caps = "/dev/nvidia-caps/nvidia-cap"
    node.process(42, "python3", "/dev/nvidia1", f"{caps}21", f"{caps}22")
    node.process(43, "train", "/dev/nvidia1", listed="2 0")
    expected = [
        GpuUse(FIRST, UseKind.PROCESS, name, pid, device, 2, 0)
        for pid, name in ((42, "python3"), (43, "train"))
    ]
    assert list(await hardware.uses()) == expected


async def test_an_open_gpu_instance_without_a_compute_instance_is_used_as_such(
    node: StubNode, hardware: NvmlHardware, device: str
) -> None:
    node.process(42, "setup", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap21")
    node.process(43, "other", "/dev/nvidia-caps/nvidia-cap23", "/dev/nvidia-caps/nvidia-cap2")
    assert await hardware.uses() == (
        GpuUse(FIRST, UseKind.PROCESS, "setup", 42, None, 2, None),
        GpuUse(FIRST, UseKind.PROCESS, "other", 43, None, 2, 1),
    )
    assert device


async def test_we_ourselves_are_left_out(node: StubNode, hardware: NvmlHardware) -> None:
    node.process(os.getpid(), "partage", "/dev/nvidia1")
    node.process(9001, "partage", "/dev/nvidia1")
    (node.root / "proc/self").symlink_to("9001")
    node.process(9002, "partage", "/dev/nvidia1")
    assert [use.pid for use in await hardware.uses()] == [9002]


async def test_what_may_not_be_read_is_not_there(node: StubNode, hardware: NvmlHardware) -> None:
    node.write(
        **{
            "fail.nvmlDeviceGetComputeRunningProcesses_v3": 4,
            "fail.nvmlDeviceGetGraphicsRunningProcesses_v3": 13,
        }
    )
    node.file("proc/55/fd", "not a directory: as little to be read as one of root's")
    (node.root / "proc/56").mkdir()
    node.process(57, "python3", "/dev/nvidia1")
    assert [use.pid for use in await hardware.uses()] == [57]


async def test_a_process_of_another_pid_namespace_has_no_name(node: StubNode, hardware: NvmlHardware) -> None:
    node.write(**{"gpu.1.process.0": "4711 -1 -1"})
    assert await hardware.uses() == (GpuUse(SECOND, UseKind.PROCESS, "unknown", 4711),)


async def test_a_lost_gpu_costs_only_its_own_answer(node: StubNode, hardware: NvmlHardware) -> None:
    node.process(42, "python3", "/dev/nvidia0", "/dev/nvidia1")
    node.lose(0)
    assert await hardware.uses() == (GpuUse(SECOND, UseKind.PROCESS, "python3", 42),)


async def test_without_a_driver_there_is_no_answer(node: StubNode, hardware: NvmlHardware) -> None:
    node.driver_gone()
    with pytest.raises(DriverUnavailable):
        await hardware.uses()

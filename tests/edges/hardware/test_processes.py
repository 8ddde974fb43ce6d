"""Processes and their memory: the driver's lists, a /proc of our own, and when some may be hidden."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.model.geometry import Placement
from partage.model.gpu_use import GpuMemory, GpuProcess, ProcessKind
from partage.model.step import CreateCompute, CreateInstance, SetMigMode
from partage.units import GIB, MIB
from tests.edges.hardware.stub import StubNode

FIRST, SECOND = StubNode.uuid(0), StubNode.uuid(1)
UID, CID = "0b5a1e0c-6f1e-4d3c-9b42-5c2d7f8e9a10", "3f" * 32
HIGH = Placement(4, 4)


@pytest.fixture
async def hardware(node: StubNode) -> AsyncIterator[NvmlHardware]:
    """Two GPUs; nothing says yet what our pid namespace is."""
    node.add_h100s(2).with_live_mig(0)
    opened = NvmlHardware(host=node.host)
    yield opened
    await opened.close()


async def rows(hardware: NvmlHardware) -> tuple[GpuProcess, ...]:
    return (await hardware.processes()).rows


async def why_hidden(hardware: NvmlHardware) -> str:
    return (await hardware.processes()).hidden


async def test_all_that_proc_says_of_a_process_comes_with_it(node: StubNode, hardware: NvmlHardware) -> None:
    node.works(42, "python", used=GIB, cgroup="4:memory:/a\n0::/b", start=4711)
    (row,) = await rows(hardware)
    assert row == GpuProcess(
        FIRST, 42, GIB, ProcessKind.COMPUTE, None, None, None, "python", ("4:memory:/a", "0::/b"), 4711, 1000
    )


async def test_a_name_that_is_meant_to_confuse_does_not(node: StubNode, hardware: NvmlHardware) -> None:
    node.works(42, "a) S 1 (b", start=77)
    (row,) = await rows(hardware)
    assert (row.name, row.start) == ("a) S 1 (b", 77)


async def test_who_is_in_several_lists_is_one_process(node: StubNode, hardware: NvmlHardware) -> None:
    node.works(42, used=GIB, kinds="CG")
    node.works(43, used=GIB, kinds="GM")
    node.works(44, used=GIB, kinds="G")
    found = [(row.pid, row.kind, row.used_bytes) for row in await rows(hardware)]
    assert found == [
        (42, ProcessKind.COMPUTE, GIB),
        (43, ProcessKind.MPS_CLIENT, GIB),
        (44, ProcessKind.GRAPHICS, GIB),
    ]


async def test_an_mps_server_is_known_by_its_name(node: StubNode, hardware: NvmlHardware) -> None:
    node.works(42, "nvidia-cuda-mps", used=GIB)
    assert [row.kind for row in await rows(hardware)] == [ProcessKind.MPS_SERVER]


async def test_on_a_mig_device_a_process_is_listed_once_and_with_the_device(
    node: StubNode, hardware: NvmlHardware
) -> None:
    await hardware.perform(SetMigMode(FIRST, enabled=True))
    await hardware.perform(CreateInstance(FIRST, "3g.40gb", HIGH))
    made = await hardware.perform(CreateCompute(FIRST, "3g.40gb", HIGH, "3g.40gb"))
    assert made is not None
    node.works(42, used=GIB, part=f"{made.gi_id} {made.ci_id}")
    (row,) = await rows(hardware)
    assert (row.gpu, row.device, row.gi_id, row.ci_id) == (FIRST, made.uuid, made.gi_id, made.ci_id)


async def test_an_old_library_without_lists_or_the_new_memory_call_costs_only_what_it_lacks(
    node: StubNode, hardware: NvmlHardware
) -> None:
    node.works(42, used=GIB)
    node.write(
        **{
            "gpu.0.used": 2 * GIB,
            "gpu.0.reserved": 600 * MIB,
            "fail.nvmlDeviceGetMPSComputeRunningProcesses_v3": 13,
            "fail.nvmlDeviceGetMemoryInfo_v2": 13,
        }
    )
    processes = await hardware.processes()
    assert [row.pid for row in processes.rows] == [42]
    assert processes.memory == (GpuMemory(FIRST, 2 * GIB + 600 * MIB), GpuMemory(SECOND, 0))
    node.write(**{"fail.nvmlDeviceGetMemoryInfo_v2": None, "fail.nvmlDeviceGetMemoryInfo": 4})
    assert (await hardware.processes()).memory[0] == GpuMemory(FIRST, 2 * GIB)
    node.write(**{"fail.nvmlDeviceGetMemoryInfo_v2": 4})
    assert (await hardware.processes()).memory[0] == GpuMemory(FIRST, None)


@pytest.mark.parametrize("driver", ["535.54.03", "535.86.10", "535.98", "535.104.05", "550.163.01"])
async def test_drivers_that_fill_the_list_in_another_size_are_read_right(
    node: StubNode, hardware: NvmlHardware, driver: str
) -> None:
    node.write(driver=driver)
    for pid in (4101, 4102, 4103):
        node.works(pid, used=GIB)
    rows = (await hardware.processes()).rows
    assert [(row.pid, row.used_bytes) for row in rows] == [(pid, GIB) for pid in (4101, 4102, 4103)]


async def test_who_has_gone_meanwhile_is_listed_without_what_proc_said(
    node: StubNode, hardware: NvmlHardware
) -> None:
    node.see_all()
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    node.write(**{"gpu.0.process.0": f"{ended.pid} -1 -1 5"})
    processes = await hardware.processes()
    assert processes.rows == (GpuProcess(FIRST, ended.pid, 5, ProcessKind.COMPUTE),)
    assert processes.hidden == ""


# --- hidden processes -----------------------------------------------------------------------------------


async def test_in_the_nodes_own_pid_namespace_all_processes_are_seen(
    node: StubNode, hardware: NvmlHardware
) -> None:
    node.see_all()
    node.write(**{"gpu.0.used": 70 * GIB})  # the driver's own, or managed memory: nothing is hidden
    assert await why_hidden(hardware) == ""


async def test_in_another_namespace_an_empty_list_proves_nothing(
    node: StubNode, hardware: NvmlHardware
) -> None:
    assert "hostPID" in await why_hidden(hardware)
    node.works(42, used=GIB, cgroup="0::/")
    node.write(**{"gpu.0.used": 3 * GIB})
    said = await why_hidden(hardware)
    assert "hostPID" in said
    assert "2048 MiB of a GPU belong to no visible process" in said


async def test_a_node_that_is_a_container_itself_sees_other_pods(
    node: StubNode, hardware: NvmlHardware
) -> None:
    node.file("proc/self/cgroup", "0::/\n")
    node.file("proc/17/cgroup", f"0::/../../kubelet-kubepods-pod{UID}.slice/cri-containerd-{CID}.scope\n")
    assert await why_hidden(hardware) == ""


async def test_containers_of_our_own_pod_prove_nothing(node: StubNode, hardware: NvmlHardware) -> None:
    node.file("proc/self/cgroup", f"0::/kubepods/pod{UID}/{CID}\n")
    node.works(42, cgroup=f"0::/kubepods/pod{UID}/{'a0' * 32}")
    node.file("proc/43/cgroup", f"0::/../cri-containerd-{'b0' * 32}.scope\n")
    assert "hostPID" in await why_hidden(hardware)


async def test_processes_that_proc_hides_are_hidden(node: StubNode, hardware: NvmlHardware) -> None:
    node.see_all()
    hidden = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        node.write(**{"gpu.0.process.0": f"{hidden.pid} -1 -1 5"})
        assert "hidepid" in await why_hidden(hardware)
    finally:
        hidden.kill()
        hidden.communicate()

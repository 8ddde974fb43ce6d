"""Persistence mode is on again after a reset, also where the process that switched it off is killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.hardware.reset import reset_gpus, running_reset
from partage.errors import DriverUnavailable, GpuInUse
from partage.model.gpu import MigMode, NoDriver
from partage.model.mps import DaemonSpec
from partage.model.step import Reset, SetMigMode, StartDaemon
from tests.edges.hardware.stub import StubNode

BOTH = (StubNode.uuid(0), StubNode.uuid(1))
STEP = Reset(BOTH, BOTH[:1])
LIMIT_S = 20.0
MARK = "persistence-off.json"

RESETTER = """
import asyncio, sys
from pathlib import Path
from partage.edges.hardware.host import Host
from partage.edges.hardware.nvml import NvmlHardware
from partage.model.step import (Reset)
root = Path(sys.argv[1])
host = Host(driver=root, proc=root / "proc", sys=root / "sys", dev=root / "dev", run=root / "run")
asyncio.run(NvmlHardware(host=host).perform(Reset(tuple(sys.argv[2:]), tuple(sys.argv[2:3]))))
"""


@pytest.fixture
async def pair(node: StubNode) -> AsyncIterator[NvmlHardware]:
    """Two GPUs in persistence mode; the MIG mode of the first waits for a reset."""
    node.add_h100s(2).with_live_mig(0, direct=False).with_live_mig(1, direct=False)
    hardware = NvmlHardware(host=node.host)
    await hardware.perform(SetMigMode(BOTH[0], enabled=True))
    for handle in hardware._nvml.handles().values():
        hardware._nvml.call("nvmlDeviceSetPersistenceMode", handle, 1)
    yield hardware
    await hardware.close()


async def persistent(hardware: NvmlHardware) -> list[int]:
    """After a look, which opens a session if there is none."""
    await hardware.observe()
    nvml = hardware._nvml
    return [nvml.call("nvmlDeviceGetPersistenceMode", handle) for handle in nvml.handles().values()]


def slow_reset(node: StubNode) -> tuple[Path, Path]:
    """nvidia-smi that touches the first file and waits for the second."""
    started, go = node.root / "started", node.root / "go"
    node.add_nvidia_smi(
        f"import os, time\nopen({str(started)!r}, 'w')\n"
        f"while os.path.exists({str(node.root)!r}) and not os.path.exists({str(go)!r}): time.sleep(0.005)"
    )
    return started, go


async def exists(path: Path) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not path.exists():
            await asyncio.sleep(0.005)


async def ended(node: StubNode) -> None:
    """nvidia-smi has ended."""
    async with asyncio.timeout(LIMIT_S):
        while running_reset(node.host):
            await asyncio.sleep(0.005)


async def test_who_comes_after_one_that_was_killed_in_a_reset_switches_it_on_again(
    node: StubNode, pair: NvmlHardware
) -> None:
    await pair.close()
    started, go = slow_reset(node)
    resetter = await asyncio.create_subprocess_exec(sys.executable, "-c", RESETTER, node.root, *BOTH)
    await exists(started)
    mark = node.root / "run" / MARK
    assert mark.exists()
    resetter.send_signal(signal.SIGKILL)
    await resetter.wait()
    go.touch()
    await ended(node)
    after = NvmlHardware(host=node.host)
    assert await persistent(after) == [1, 1]
    assert not mark.exists()
    await after.close()


async def test_while_nvidia_smi_resets_for_one_that_was_killed_nothing_is_touched(
    node: StubNode, pair: NvmlHardware
) -> None:
    await pair.close()
    started, go = slow_reset(node)
    resetter = await asyncio.create_subprocess_exec(sys.executable, "-c", RESETTER, node.root, *BOTH)
    await exists(started)
    resetter.send_signal(signal.SIGKILL)
    await resetter.wait()
    after = NvmlHardware(host=node.host, keeper=None)
    driver = (await after.observe()).driver
    assert isinstance(driver, NoDriver)
    assert (driver.kind, all(gpu in driver.reason for gpu in BOTH)) == ("resetting", True)
    daemon = StartDaemon(BOTH[0], DaemonSpec(BOTH[0], BOTH[0]))
    for step in (STEP, SetMigMode(BOTH[1], enabled=True), daemon):
        with pytest.raises(DriverUnavailable, match="still resets GPU-0"):
            await after.perform(step)
    assert (node.root / "nvidia-smi.log").read_text().count("--gpu-reset") == 1
    go.touch()
    await ended(node)
    assert await persistent(after) == [1, 1]
    assert (await after.observe()).gpus[0].mig_mode == MigMode(current=True, pending=True)
    await after.close()


async def test_two_resets_do_not_run_at_the_same_time(node: StubNode, pair: NvmlHardware) -> None:
    started, go = slow_reset(node)
    act = asyncio.create_task(pair.perform(STEP))
    await exists(started)
    with pytest.raises(GpuInUse, match="still resets"):
        await reset_gpus(node.host, BOTH)
    go.touch()
    await act


async def test_it_is_not_switched_on_during_the_reset_of_another_process(
    node: StubNode, pair: NvmlHardware
) -> None:
    started, go = slow_reset(node)
    act = asyncio.create_task(pair.perform(STEP))
    await exists(started)
    visitor = NvmlHardware(host=node.host)
    assert isinstance((await visitor.observe()).driver, NoDriver)
    await visitor.close()
    go.touch()
    await act
    assert await persistent(pair) == [1, 1]
    assert not (node.root / "run" / MARK).exists()


async def test_after_a_reset_that_was_given_up_it_is_on_again(node: StubNode, pair: NvmlHardware) -> None:
    started, go = slow_reset(node)
    act = asyncio.create_task(pair.perform(STEP))
    await exists(started)
    act.cancel()
    with pytest.raises(asyncio.CancelledError):
        await act
    go.touch()
    await ended(node)
    assert await persistent(pair) == [1, 1]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"{}", b"[1]", b'["GPU-9"]', b"\xff"])
async def test_a_file_that_says_nothing_of_use_is_no_trouble_and_goes(
    node: StubNode, pair: NvmlHardware, content: bytes
) -> None:
    await pair.close()
    mark = node.root / "run" / "persistence-off.json"
    mark.parent.mkdir(exist_ok=True)
    mark.write_bytes(content)
    after = NvmlHardware(host=node.host)
    assert await persistent(after) == [1, 1]
    assert not mark.exists()
    await after.close()


async def test_where_nothing_can_be_written_down_the_reset_is_done_all_the_same(
    node: StubNode, pair: NvmlHardware
) -> None:
    node.add_nvidia_smi()
    (node.root / "run").write_text("no directory")
    await pair.perform(STEP)
    assert await persistent(pair) == [1, 1]
    assert (node.root / "run").is_file()

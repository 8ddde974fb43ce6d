"""NVML in this process: its two threads, deadlines, and drivers that come and go."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.hardware.port import COLD_GPU_S, Events
from partage.errors import HardwareTimeout
from partage.model.gpu import Driver, NoDriver
from partage.model.health import Xid
from tests.edges.hardware.stub import StubNode

LIMIT_S = 10.0


async def _next_events(hardware: NvmlHardware) -> Events:
    async with asyncio.timeout(LIMIT_S):
        while (events := await hardware.events(LIMIT_S)) == Events():
            pass
        return events


async def test_a_call_that_hangs_in_the_driver_is_given_up_and_so_are_those_behind_it(node: StubNode) -> None:
    node.add_h100s(2)
    hardware = NvmlHardware(host=node.host, deadline_s=0.2)
    assert (await hardware.observe()).gpus
    node.write(**{"hang.nvmlDeviceGetCount_v2": 3000})
    began = time.monotonic()
    with pytest.raises(HardwareTimeout, match=r"0\.2 s"):
        await hardware.observe()
    with pytest.raises(HardwareTimeout):
        await hardware.conditions()
    await hardware.close()
    assert time.monotonic() - began < 2.0


async def test_cold_gpus_may_take_their_time_and_warm_ones_may_not(node: StubNode) -> None:
    node.add_h100s(4).write(**{f"gpu.{index}.cold": 150 for index in range(4)})
    hardware = NvmlHardware(host=node.host, deadline_s=0.3)
    assert await hardware.cold_s() == 4 * COLD_GPU_S  # opens a session, and initialises no GPU
    observed, conditions = await asyncio.gather(hardware.observe(), hardware.conditions())
    assert (len(observed.gpus), len(conditions)) == (4, 4)
    node.write(**{"hang.nvmlDeviceGetUUID": 3000})
    began = time.monotonic()
    with pytest.raises(HardwareTimeout, match=r"0\.3 s"):
        await hardware.observe()
    assert time.monotonic() - began < 2.0
    await hardware.close()


async def test_a_session_that_is_opened_anew_finds_the_gpus_cold(node: StubNode) -> None:
    now = 0.0
    node.add_h100s(4).write(**{f"gpu.{index}.cold": 150 for index in range(4)})
    hardware = NvmlHardware(host=node.host, deadline_s=0.3, clock=lambda: now)
    node.lose(1)
    assert len((await hardware.observe()).lost) == 1
    node.find_again(1)
    now = 61.0
    assert len((await hardware.observe()).gpus) == 4
    await hardware.close()


async def test_an_event_names_gpu_and_mig_instances(node: StubNode) -> None:
    node.add_h100s(2)
    hardware = NvmlHardware(host=node.host)
    await hardware.events(0.0)
    node.raise_xid(1, 94, gi=3, ci=0)
    assert await _next_events(hardware) == Events(xids=(Xid(node.uuid(1), 94, 3, 0),))
    await hardware.close()


@pytest.mark.parametrize("kind", [0x100, 0x4000, 0x8000])
async def test_changed_mig_devices_and_recovery_actions_ask_for_a_new_look(node: StubNode, kind: int) -> None:
    node.add_h100s(1).write(**{"gpu.0.events": "0xc108"})
    hardware = NvmlHardware(host=node.host)
    await hardware.events(0.0)
    node.raise_event(0, kind)
    assert await _next_events(hardware) == Events(changed=True)
    await hardware.close()


async def test_only_events_that_a_gpu_supports_are_asked_for(node: StubNode) -> None:
    node.add_h100s(2).write(**{"gpu.0.events": "0x8", "gpu.1.events": 0})
    hardware = NvmlHardware(host=node.host)
    await hardware.events(0.0)
    node.raise_xid(1, 43)
    node.raise_xid(0, 31)
    assert await _next_events(hardware) == Events(xids=(Xid(node.uuid(0), 31),))
    await hardware.close()


async def test_the_last_word_of_a_gpu_that_falls_off_the_bus_still_names_it(node: StubNode) -> None:
    node.add_h100s(2)
    hardware = NvmlHardware(host=node.host)
    await hardware.events(0.0)
    node.keys["gpu.1.code"] = 15
    node.raise_xid(1, 79)
    assert await _next_events(hardware) == Events(xids=(Xid(node.uuid(1), 79),))
    assert [lost.index for lost in (await hardware.observe()).lost] == [1]
    await hardware.close()


async def test_waiting_goes_on_for_the_others_when_a_gpu_is_lost(node: StubNode) -> None:
    node.add_h100s(2)
    hardware = NvmlHardware(host=node.host)
    await hardware.events(0.0)
    node.write(**{"gpu.1.code": 15, "fail.nvmlEventSetWait_v2": 15})
    assert await _next_events(hardware) == Events(changed=True)
    node.write(**{"fail.nvmlEventSetWait_v2": None})
    codes: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while not codes:
            node.raise_xid(0, 43)
            codes = [xid.code for xid in (await hardware.events(0.3)).xids]
    assert set(codes) == {43}
    await hardware.close()


async def test_a_lost_gpu_that_came_back_is_seen_by_a_fresh_session(node: StubNode) -> None:
    now = 0.0
    node.add_h100s(2).lose(1)
    hardware = NvmlHardware(host=node.host, clock=lambda: now)
    assert len((await hardware.observe()).lost) == 1
    # The library goes on answering for a GPU as it did when the session began.
    node.keys["init"] = 9
    node.find_again(1)
    assert len((await hardware.observe()).gpus) == 2
    node.lose(1)
    await hardware.observe()
    now = 61.0
    assert isinstance((await hardware.observe()).driver, NoDriver), "a new session was opened"
    await hardware.close()


async def test_a_driver_that_comes_is_noticed_by_who_waits_for_events(node: StubNode) -> None:
    node.add_h100s(1).driver_gone()
    hardware = NvmlHardware(host=node.host)
    assert isinstance((await hardware.observe()).driver, NoDriver)
    node.driver_loaded()
    assert await _next_events(hardware) == Events(changed=True)
    assert isinstance((await hardware.observe()).driver, Driver)
    await hardware.close()


async def test_the_end_waits_for_no_thread_that_waits_for_events(node: StubNode) -> None:
    """That wait takes up to a second; the process that ends takes the thread along."""
    node.add_h100s(1)
    hardware, before = NvmlHardware(host=node.host), set(threading.enumerate())
    assert await hardware.events(0.05) == Events()
    await hardware.close()
    waiting = [one for one in set(threading.enumerate()) - before if one.name == "nvml-events"]
    assert waiting
    for thread in waiting:
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()


async def test_a_driver_that_was_replaced_is_read_with_its_own_library(node: StubNode) -> None:
    node.add_h100s(1)
    hardware = NvmlHardware(host=node.host)
    old = await hardware.observe()
    # An upgrade as distributions do it: another file, another link; the library before fits no more.
    target = node.library.with_name("libnvidia-ml.so.580.95.05")
    target.write_bytes(node.library.read_bytes())
    node.library.unlink()
    node.library.symlink_to(target)
    node.write(all=18, init=18)
    assert isinstance((await hardware.observe()).driver, NoDriver)
    node.driver_loaded("580.95.05")
    new = await hardware.observe()
    assert (old.driver, new.driver) == (Driver("550.163.01", "12.4"), Driver("580.95.05", "12.4"))
    assert new.gpus == old.gpus
    await hardware.close()


async def test_a_session_that_went_stale_is_opened_again_within_the_same_call(node: StubNode) -> None:
    node.add_h100s(1)
    hardware = NvmlHardware(host=node.host)
    before = await hardware.observe()
    node.write(**{"fail.nvmlDeviceGetCount_v2": 1})
    without = await hardware.observe()
    assert isinstance(without.driver, NoDriver)
    assert without.driver.kind == "failed"
    node.write(**{"fail.nvmlDeviceGetCount_v2": None})
    assert await hardware.observe() == before
    await hardware.close()


async def test_a_wait_that_fails_begins_again_after_a_pause(node: StubNode) -> None:
    now = 0.0
    node.add_h100s(1)
    hardware = NvmlHardware(host=node.host, clock=lambda: now)
    await hardware.events(0.0)
    node.write(**{"fail.nvmlEventSetWait_v2": 999})
    assert await _next_events(hardware) == Events(changed=True)
    node.write(**{"fail.nvmlEventSetWait_v2": None})
    assert await hardware.events(0.1) == Events(), "a driver that fails is not hammered"
    now = 6.0
    assert await _next_events(hardware) == Events(changed=True)
    node.raise_xid(0, 13)
    assert await _next_events(hardware) == Events(xids=(Xid(node.uuid(0), 13),))
    await hardware.close()


async def test_a_flood_of_xids_that_are_not_taken_is_bounded(node: StubNode) -> None:
    hardware = NvmlHardware(host=node.add_h100s(1).host)
    for code in range(3000):
        hardware._mailbox.put(Events(xids=(Xid(None, code),)))
    events = await hardware.events(0.0)
    assert [xid.code for xid in events.xids] == list(range(3000 - 1024, 3000))
    await hardware.close()

"""Waiting for events of a simulated node."""

import asyncio

import pytest

from partage.edges.hardware.port import Events
from partage.errors import DriverUnavailable
from partage.sim.node.faults import DriverGone, RaiseXid, SetMig
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import parse_machine


def node():
    return SimulatedHardware(parse_machine("2xa100-40gb"))


async def waiting(hardware):
    """A task that waits for events, once it does."""
    task = asyncio.create_task(hardware.events(30))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_nothing_happens_until_the_time_is_over():
    assert await node().events(0.01) == Events()


async def test_a_waiting_call_wakes_up():
    hardware = node()
    task = await waiting(hardware)
    await hardware.misbehave(RaiseXid(0, 43))
    async with asyncio.timeout(5):
        assert [xid.code for xid in (await task).xids] == [43]


async def test_a_waiting_call_hears_that_the_driver_goes():
    hardware = node()
    task = await waiting(hardware)
    await hardware.misbehave(DriverGone())
    async with asyncio.timeout(5):
        with pytest.raises(DriverUnavailable):
            await task


async def test_waiting_holds_up_no_other_call():
    hardware = node()
    task = await waiting(hardware)
    async with asyncio.timeout(5):
        await hardware.observe()
        await hardware.conditions()
    assert not task.done()
    task.cancel()


async def test_a_cancelled_wait_loses_nothing():
    hardware = node()
    task = await waiting(hardware)
    await hardware.misbehave(RaiseXid(0, 43))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [xid.code for xid in (await hardware.events(0)).xids] == [43]


async def test_events_come_together_and_in_order():
    hardware = node()
    for code in (13, 31, 43):
        await hardware.misbehave(RaiseXid(0, code))
    await hardware.misbehave(SetMig(1, ()))
    events = await hardware.events(0)
    assert [xid.code for xid in events.xids] == [13, 31, 43]
    assert events.changed

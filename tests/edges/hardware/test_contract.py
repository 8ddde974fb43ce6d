"""What every implementation of the hardware port must do."""

from __future__ import annotations

import asyncio
from itertools import combinations

import pytest

from partage.edges.hardware.port import Events
from partage.errors import DriverUnavailable, NotFound, Unsupported
from partage.model.driver_limit import LimitAt
from partage.model.gpu import Driver, NoDriver
from partage.model.ids import ContainerId, PodUid
from partage.model.step import SetMemoryLimit
from partage.units import GIB
from tests.edges.hardware.conftest import Subject

LIMIT_S = 10.0
NEVER = [ContainerId("e" * 64), ContainerId("4000000000"), ContainerId("sZZZZZZZZZZZZZ")]
"""A container, and jobs by number and SLUID."""


async def test_the_inventory_is_ordered_complete_and_the_same_when_nothing_happens(subject: Subject) -> None:
    inventory = await subject.hardware.observe()
    assert isinstance(inventory.driver, Driver)
    assert [gpu.index for gpu in inventory.gpus] == sorted(gpu.index for gpu in inventory.gpus)
    assert inventory.gpus
    assert not inventory.lost
    uuids = [gpu.uuid for gpu in inventory.gpus]
    assert len(set(uuids)) == len(uuids)
    assert {frozenset((link.a, link.b)) for link in inventory.links} == {
        frozenset(pair) for pair in combinations(uuids, 2)
    }
    assert await subject.hardware.observe() == inventory


async def test_every_gpu_of_the_inventory_has_a_condition(subject: Subject) -> None:
    inventory = await subject.hardware.observe()
    conditions = await subject.hardware.conditions()
    assert [condition.gpu for condition in conditions] == [gpu.uuid for gpu in inventory.gpus]
    assert not any(condition.lost for condition in conditions)


async def test_of_a_pod_that_never_was_nothing_is_left(subject: Subject) -> None:
    assert not (await subject.hardware.left_of([PodUid("0aa9e3a1-0000-4000-8000-000000000001")])).processes


@pytest.mark.parametrize("name", NEVER)
async def test_of_a_container_or_job_that_never_was_no_limit_is_read(
    subject: Subject, name: ContainerId
) -> None:
    (gpu, *_) = (await subject.hardware.observe()).gpus
    at = LimitAt(name, gpu.uuid)
    (seen,) = await subject.hardware.limits([at])
    assert (seen.at, seen.state, seen.cgroup) == (at, None, "")
    assert seen.why


@pytest.mark.parametrize("name", NEVER)
async def test_nor_is_one_set_there(acting: Subject, name: ContainerId) -> None:
    (gpu, *_) = (await acting.hardware.observe()).gpus
    with pytest.raises((NotFound, Unsupported)):
        await acting.hardware.perform(SetMemoryLimit(gpu.uuid, name, GIB))


async def test_without_mps_daemons_nobody_has_a_pipe(subject: Subject) -> None:
    assert not (await subject.hardware.tenants()).rows


async def test_waiting_for_events_ends_in_time_and_with_none_when_nothing_happens(subject: Subject) -> None:
    async with asyncio.timeout(LIMIT_S):
        assert await subject.hardware.events(0.05) == Events()


async def test_waiting_for_events_holds_up_no_other_call(subject: Subject) -> None:
    await subject.hardware.observe()
    waiting = asyncio.create_task(subject.hardware.events(LIMIT_S))
    await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT_S / 2):
        await asyncio.gather(subject.hardware.observe(), subject.hardware.conditions())
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_cancelled_call_leaves_nothing_behind(subject: Subject) -> None:
    hardware = subject.hardware
    calls = [
        asyncio.create_task(call) for call in (hardware.observe(), hardware.conditions(), hardware.events(5))
    ]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance((await hardware.observe()).driver, Driver)
    assert await hardware.conditions()


async def test_it_can_be_closed_twice_and_before_it_was_used(subject: Subject) -> None:
    await subject.hardware.close()
    await subject.hardware.close()


async def test_an_xid_reaches_who_waits_and_only_once(subject: Subject) -> None:
    if subject.raise_xid is None:
        pytest.skip("nothing here can raise an XID")
    inventory = await subject.hardware.observe()
    await _watched(subject)
    waiting = asyncio.create_task(subject.hardware.events(LIMIT_S))
    await asyncio.sleep(0)
    await subject.raise_xid(1, 43)
    (xid,) = (await waiting).xids
    assert (xid.gpu, xid.code, xid.gi_id, xid.ci_id) == (inventory.gpus[1].uuid, 43, None, None)
    assert await subject.hardware.events(0.05) == Events()


async def test_events_wait_for_those_who_come_later(subject: Subject) -> None:
    if subject.raise_xid is None:
        pytest.skip("nothing here can raise an XID")
    await _watched(subject)
    await subject.raise_xid(0, 13)
    await subject.raise_xid(2, 31)
    codes: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while len(codes) < 2:
            codes += [xid.code for xid in (await subject.hardware.events(LIMIT_S)).xids]
    assert codes == [13, 31]


async def test_who_gives_up_waiting_takes_no_event_along(subject: Subject) -> None:
    if subject.raise_xid is None:
        pytest.skip("nothing here can raise an XID")
    await _watched(subject)
    waiting = asyncio.create_task(subject.hardware.events(LIMIT_S))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await subject.raise_xid(3, 94)
    assert [xid.code for xid in (await subject.hardware.events(LIMIT_S)).xids] == [94]


async def test_one_lost_gpu_never_takes_the_others_down(subject: Subject) -> None:
    if subject.lose is None:
        pytest.skip("nothing here can lose a GPU")
    before = await subject.hardware.observe()
    await subject.lose(2)
    after = await subject.hardware.observe()
    gone = before.gpus[2]
    assert after.gpus == before.gpus[:2] + before.gpus[3:]
    assert [(lost.index, lost.uuid) for lost in after.lost] == [(2, gone.uuid)]
    assert after.lost[0].reason
    assert gone.uuid not in {uuid for link in after.links for uuid in (link.a, link.b)}
    conditions = await subject.hardware.conditions()
    assert [condition.gpu for condition in conditions] == [gpu.uuid for gpu in before.gpus]
    assert [bool(condition.lost) for condition in conditions] == [False, False, True, False]


async def test_a_missing_driver_is_a_state_and_its_return_is_noticed(subject: Subject) -> None:
    if subject.driver_gone is None or subject.driver_loaded is None:
        pytest.skip("nothing here can unload the driver")
    before = await subject.hardware.observe()
    await subject.driver_gone()
    without = await subject.hardware.observe()
    assert isinstance(without.driver, NoDriver)
    assert (without.driver.kind, without.gpus, without.links) == ("driver-missing", (), ())
    assert without.boot_id == before.boot_id
    with pytest.raises(DriverUnavailable):
        await subject.hardware.conditions()
    await subject.driver_loaded()
    assert await subject.hardware.observe() == before


async def test_waiting_for_events_without_a_driver_says_so_or_hears_of_its_return(subject: Subject) -> None:
    if subject.driver_gone is None or subject.driver_loaded is None:
        pytest.skip("nothing here can unload the driver")
    await subject.hardware.observe()
    await subject.driver_gone()
    await subject.hardware.observe()
    with pytest.raises(DriverUnavailable):
        await _events_for_ever(subject)
    await subject.driver_loaded()
    async with asyncio.timeout(LIMIT_S):
        while not await _hears_of_a_change(subject):
            pass


async def _events_for_ever(subject: Subject) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            await subject.hardware.events(0.1)


async def _hears_of_a_change(subject: Subject) -> bool:
    try:
        return (await subject.hardware.events(0.5)).changed
    except DriverUnavailable:
        return False


async def _watched(subject: Subject) -> None:
    """Wait until events are watched: earlier events are not delivered."""
    assert subject.raise_xid is not None
    async with asyncio.timeout(LIMIT_S):
        while not (await subject.hardware.events(0.1)).xids:
            await subject.raise_xid(0, 8)
        while await subject.hardware.events(0.3) != Events():
            pass

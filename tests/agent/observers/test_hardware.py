"""What the hardware says: asked at once, told once."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from partage.agent.observers.hardware import MOST_ALIKE, XID_LOG_S, HardwareObserver, XidLog
from partage.agent.options import Intervals
from partage.model.health import Xid
from partage.model.ids import GpuUuid
from partage.sim.node.faults import DriverGone, DriverLoaded, ResetGpu
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.node.loops import SimulatedTimeLoop

NEVER = Intervals(observe_s=3600.0, conditions_s=3600.0)


def senses(machine: str = "2xa100-40gb") -> tuple[SimulatedHardware, HardwareObserver, asyncio.Event]:
    hardware, asked = SimulatedHardware(load_machine(machine)), asyncio.Event()
    return hardware, HardwareObserver(hardware, asked.set, NEVER, XidLog(time.monotonic)), asked


async def test_health_is_asked_for_at_once_so_that_a_reset_can_be_told_from_what_was_before() -> None:
    hardware, sense, asked = senses()
    task = asyncio.create_task(sense.conditions_forever())
    async with asyncio.timeout(5.0):
        await asked.wait()
    first = sense.take().conditions
    await hardware.inject(ResetGpu(1))
    then = await hardware.conditions()
    task.cancel()
    assert first is not None
    assert [(before.resets, after.resets) for before, after in zip(first, then, strict=True)] == [
        (0, 0),
        (0, 1),
    ]


async def test_the_same_answer_asks_for_no_turn_while_nothing_waits() -> None:
    """A turn and its report are most of what an agent at rest costs."""
    hardware, now = SimulatedHardware(load_machine("2xa100-40gb")), {"settled": True}
    asked: list[object] = []
    sense = HardwareObserver(
        hardware, lambda: asked.append(sense.take().conditions), NEVER, XidLog(time.monotonic),
        settled=lambda: now["settled"],
    )  # fmt: skip

    async def answers(count: int) -> int:
        """How many of so many answers ask for a turn."""
        before = len(asked)
        for _ in range(count):
            await sense.ask_conditions()
        return len(asked) - before

    assert await answers(1) == 1, "the first one"
    assert await answers(MOST_ALIKE) == 0
    assert sense.take().conditions is None, "an old answer is no answer to an XID of later"
    assert await answers(MOST_ALIKE + 1) == 1, "now and then all the same"
    await hardware.inject(ResetGpu(1))
    assert await answers(1) == 1, "another one"
    now["settled"] = False
    assert await answers(3) == 3, "a state improves only with answers"
    now["settled"] = True
    await hardware.inject(DriverGone())
    assert await answers(2) == 2, "none"


async def test_a_driver_that_comes_and_goes_is_told_each_time_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "partage")
    hardware, sense, _ = senses()
    for fault in (None, DriverGone(), DriverLoaded()):
        if fault is not None:
            await hardware.inject(fault)
        await sense.observe()
        await sense.observe()
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [("INFO", "driver works"), ("WARNING", "no driver"), ("INFO", "driver works")]


def test_an_xid_that_is_raised_again_and_again_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    xids = XidLog(lambda: now_s)
    for second in range(int(2 * XID_LOG_S)):
        now_s = float(second)
        for code in (13, 31):
            for _ in range(10):
                xids.note(Xid(GpuUuid("GPU-0"), code))
    xids.note(Xid(GpuUuid("GPU-1"), 13))
    told = [(record.__dict__["gpu"], record.__dict__["xid"]) for record in caplog.records]
    assert told == [("GPU-0", 13), ("GPU-0", 31)] * 2 + [("GPU-1", 13)]
    assert [record.__dict__["not_logged"] for record in caplog.records] == [None, None, 599, 599, None]


def test_a_question_out_of_step_makes_the_next_one_no_later_than_promised() -> None:
    """An XID asks at once, at any moment; from then on a fault is still known within conditions_s."""

    async def times() -> list[float]:
        loop, found = asyncio.get_running_loop(), list[float]()
        hardware = SimulatedHardware(load_machine("2xa100-40gb"))
        sense = HardwareObserver(hardware, lambda: found.append(loop.time()), Intervals(), XidLog(loop.time))
        await asyncio.sleep(3.0 - loop.time() % 5.0 + 5.0)
        task = asyncio.create_task(sense.conditions_forever())
        await asyncio.sleep(12.0)
        task.cancel()
        return found

    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        found = runner.run(times())
    assert len(found) >= 3
    assert max(later - earlier for earlier, later in pairwise(found)) <= 5.01

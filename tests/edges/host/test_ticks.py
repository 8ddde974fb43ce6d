"""Timers that are due together."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from partage.edges.host.waiting import until_tick
from tests.node.loops import SimulatedTimeLoop


@pytest.mark.parametrize("period_s", [1.0, 0.05, 7.0])
def test_whoever_waits_is_woken_at_multiples_of_the_period(period_s: float) -> None:
    async def woken(late_s: float) -> list[float]:
        await asyncio.sleep(late_s * period_s)
        times = []
        for _ in range(4):
            await until_tick(period_s)
            times.append(asyncio.get_running_loop().time() / period_s)
        return times

    async def all_woken() -> list[list[float]]:
        return await asyncio.gather(*(woken(late_s) for late_s in (0.01, 0.05, 0.1)))

    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        found = runner.run(all_woken())
    for times in found:
        assert [round(time) for time in times] == pytest.approx(times, abs=0.01)
        assert [round(later - earlier) for earlier, later in pairwise(times)] == [1, 1, 1]
    assert [[round(time) for time in times] for times in found] == [[round(time) for time in found[0]]] * 3


def test_a_tick_that_is_too_near_is_left_out() -> None:
    async def woken() -> float:
        await asyncio.sleep(4.9)
        await until_tick(5.0, least_s=2.5)
        return asyncio.get_running_loop().time()

    async def woken_after() -> tuple[float, float]:
        began_s = asyncio.get_running_loop().time()
        return began_s, await woken()

    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        began_s, woken_s = runner.run(woken_after())
    assert woken_s % 5.0 == pytest.approx(0.0, abs=0.01)
    assert 2.5 <= woken_s - began_s - 4.9 <= 7.5


async def test_an_event_ends_the_wait() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(until_tick(1e6, event))
    await asyncio.sleep(0)
    event.set()
    async with asyncio.timeout(5.0):
        await waiting

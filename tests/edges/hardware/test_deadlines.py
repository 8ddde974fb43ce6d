"""A call ends in time; the time of an act counts for none of those that wait for it."""

from __future__ import annotations

import asyncio
import time

import pytest

from partage.edges.hardware.deadlines import PERFORM, CallDeadlines
from partage.errors import HardwareTimeout

SHORT_S, LONG_S = 0.2, 60.0
LIMIT_S = 20.0
"""Shorter than an act may take: what has to be known soon is known before this."""


async def wait_within(deadlines: CallDeadlines, verb: str, event: asyncio.Event) -> None:
    async with deadlines.within(verb):
        await event.wait()


async def begun(deadlines: CallDeadlines, verb: str, event: asyncio.Event) -> asyncio.Task[None]:
    task = asyncio.create_task(wait_within(deadlines, verb, event))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(
    ("deadlines", "verb"),
    [(CallDeadlines(SHORT_S, LONG_S), "observe"), (CallDeadlines(LONG_S, SHORT_S), PERFORM)],
)
async def test_what_does_not_end_is_a_timeout_that_names_it(deadlines: CallDeadlines, verb: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(HardwareTimeout, match=f"{verb} did not end within 0.2 s"):
            await wait_within(deadlines, verb, asyncio.Event())


@pytest.mark.parametrize("first", ["observe", PERFORM])
async def test_a_call_waits_for_an_act_that_takes_longer_than_itself_may(first: str) -> None:
    deadlines, done = CallDeadlines(SHORT_S, LONG_S), asyncio.Event()
    second = PERFORM if first == "observe" else "observe"
    tasks = [await begun(deadlines, verb, done) for verb in (first, second)]
    await asyncio.wait(tasks, timeout=5 * SHORT_S)
    assert not any(task.done() for task in tasks)
    done.set()
    await asyncio.gather(*tasks)


async def test_a_call_that_hangs_after_an_act_is_known_soon() -> None:
    deadlines, done = CallDeadlines(SHORT_S, LONG_S), asyncio.Event()
    call = await begun(deadlines, "observe", asyncio.Event())
    act = await begun(deadlines, PERFORM, done)
    done.set()
    await act
    began = time.monotonic()
    with pytest.raises(HardwareTimeout):
        await call
    assert time.monotonic() - began < LIMIT_S


async def test_a_call_waits_for_an_act_that_may_take_longer_than_others() -> None:
    deadlines, done = CallDeadlines(SHORT_S, SHORT_S), asyncio.Event()

    async def reset() -> None:
        async with deadlines.within(PERFORM, LONG_S):
            await done.wait()

    act = asyncio.create_task(reset())
    await asyncio.sleep(0)
    call = await begun(deadlines, "observe", done)
    await asyncio.wait([act, call], timeout=5 * SHORT_S)
    assert not act.done()
    assert not call.done()
    done.set()
    await asyncio.gather(act, call)


async def test_an_act_waits_for_the_act_before_it() -> None:
    deadlines, done = CallDeadlines(SHORT_S, 0.4), asyncio.Event()
    first = await begun(deadlines, PERFORM, asyncio.Event())
    second = await begun(deadlines, PERFORM, done)
    with pytest.raises(HardwareTimeout):
        await first
    assert not second.done()
    done.set()
    await second


async def test_a_timeout_of_the_caller_stays_one() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wait_within(CallDeadlines(), "observe", asyncio.Event())

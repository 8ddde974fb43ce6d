"""Tasks that must not end: each end is said, and the task starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from partage.agent.supervision import GIVEN_UP, STEADY_S, Supervisor
from partage.edges.host.own_task import TaskEnded, unending
from partage.errors import InputError
from tests.virtual_time import in_virtual_time


async def returns() -> None:
    await asyncio.sleep(0)


async def is_cancelled() -> None:
    """As grpclib ends a call: the task cancels itself, and nobody takes that back."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def fails() -> None:
    raise ZeroDivisionError("a bug of ours")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (returns, "the part returned"),
        (is_cancelled, "the part was cancelled"),
        (fails, "ZeroDivisionError: a bug of ours"),
    ],
)
@in_virtual_time
async def test_each_end_of_a_task_is_said_and_the_task_starts_again(
    caplog: pytest.LogCaptureFixture, work: Callable[[], Awaitable[None]], said: str
) -> None:
    starts = 0

    async def part() -> None:
        nonlocal starts
        starts += 1
        if starts > GIVEN_UP:
            await asyncio.Event().wait()
        await work()

    supervisor = Supervisor(asyncio.get_running_loop().time)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(supervisor.keep("the part", part))
        await asyncio.sleep(1.0)
        assert 1 < starts < GIVEN_UP
        assert supervisor.trouble == "", "it is still being started again"
        await asyncio.sleep(30.0)
        assert starts > GIVEN_UP
        assert said in supervisor.trouble
        assert "the task the part ended" in supervisor.trouble
        await asyncio.sleep(STEADY_S)
        assert supervisor.trouble == "", "it has run for long"
        task.cancel()
    assert "task ended" in [record.getMessage() for record in caplog.records]
    assert supervisor.trouble == ""


async def test_a_task_that_is_told_to_end_ends_with_all_it_has_to_clean_up() -> None:
    cleaned = asyncio.Event()

    async def part() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    task = asyncio.create_task(Supervisor(lambda: 0.0).keep("part", part))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert cleaned.is_set()


async def test_what_only_a_person_can_mend_ends_the_agent() -> None:
    async def part() -> None:
        raise InputError("the helper refuses its options")

    with pytest.raises(InputError):
        await Supervisor(lambda: 0.0).keep("part", part)


async def test_a_group_learns_of_a_member_that_ended_silently() -> None:
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(unending("left", is_cancelled()))
            group.create_task(unending("right", asyncio.Event().wait()))

    with pytest.raises(ExceptionGroup) as found:
        await both()
    assert [str(one) for one in found.value.exceptions] == ["left was cancelled"]
    assert isinstance(found.value.exceptions[0], TaskEnded)

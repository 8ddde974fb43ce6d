"""A call that runs into its deadline, or loses its connection, leaves the task that asked as it was."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from partage.edges.host.waiting import until_tick
from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.edges.kubelet.registration import register
from partage.errors import Unreachable
from partage.model.ids import ResourceName

LIMIT_S = 0.05


@pytest.fixture
def mute(short_dir: Path) -> Iterator[Path]:
    """A kubelet that stands still: connections are made, and nothing is answered."""
    path = short_dir / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path


async def _registers(path: Path) -> None:
    options = pb.DevicePluginOptions()
    await register(
        path, endpoint="a", resource=ResourceName("nvidia.com/gpu"), options=options, timeout_s=LIMIT_S
    )


async def _asks_for_holders(path: Path) -> None:
    await PodResourcesClient(path, timeout_s=LIMIT_S).held()


CALLS = pytest.mark.parametrize("call", [_registers, _asks_for_holders])


@CALLS
async def test_a_deadline_does_not_end_the_task_at_its_next_pause(
    mute: Path, call: Callable[[Path], Awaitable[None]]
) -> None:
    """On Python 3.11.0 to 3.11.2 the pause raised CancelledError, and the group called that a good end."""
    rounds = 0

    async def forever() -> None:
        nonlocal rounds
        while rounds < 3:
            with pytest.raises(Unreachable, match="in time"):
                await call(mute)
            await until_tick(0.02)
            rounds += 1

    async with asyncio.TaskGroup() as group:
        task = group.create_task(forever())
    assert rounds == 3
    assert not task.cancelled()


@CALLS
async def test_a_lost_connection_does_not_end_the_task_at_its_next_pause(
    short_dir: Path, call: Callable[[Path], Awaitable[None]]
) -> None:
    """grpclib tells a call of it as of a deadline."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    path, rounds = short_dir / "kubelet.sock", 0
    async with await asyncio.start_unix_server(hang_up, path):
        for _ in range(3):
            with pytest.raises(Unreachable):
                await call(path)
            await until_tick(0.02)
            rounds += 1
    assert rounds == 3


async def test_a_caller_that_is_cancelled_ends_its_call(mute: Path) -> None:
    asking = asyncio.create_task(PodResourcesClient(mute, timeout_s=60.0).held())
    await asyncio.sleep(0)
    before = asyncio.all_tasks()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() < before

"""Asking a scripted kubelet who holds what."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.errors import Unreachable
from partage.model.ids import ResourceName, ShareId
from partage.model.share import ContainerHold
from tests.kubelet_script import ScriptedKubelet, grpc, held, scripted_kubelet, until

GPU = ResourceName("nvidia.com/gpu")
SHARED = ResourceName("nvidia.com/gpu.shared")


@asynccontextmanager
async def asking(
    directory: Path, timeout_s: float = 5.0
) -> AsyncIterator[tuple[ScriptedKubelet, PodResourcesClient]]:
    path = directory / "pod-resources" / "kubelet.sock"
    with scripted_kubelet(directory / "plugins", path) as kubelet:
        client = PodResourcesClient(path, timeout_s=timeout_s)
        yield kubelet, client
        client.close()


async def test_the_entries_of_one_resource_are_put_together(short_dir: Path) -> None:
    async with asking(short_dir) as (kubelet, client):
        kubelet.pod_resources = held(
            {
                "default/train": {"main": {GPU: ["a", "b"], SHARED: ["c::1"]}, "side": {}},
                "other/train": {"main": {SHARED: ["c::0"]}},
                "default/idle": {},
            }
        )
        assert await client.held() == (
            ContainerHold("default", "train", "main", GPU, (ShareId("a"), ShareId("b"))),
            ContainerHold("default", "train", "main", SHARED, (ShareId("c::1"),)),
            ContainerHold("other", "train", "main", SHARED, (ShareId("c::0"),)),
        )


async def test_callers_share_the_call_that_starts_after_they_asked(short_dir: Path) -> None:
    """Eleven callers, two calls: no answer is older than its question, and no calls are in parallel."""
    async with asking(short_dir) as (kubelet, client):
        kubelet.list_delay_s = 0.2
        first = asyncio.create_task(client.held())
        await until(lambda: kubelet.lists_in_flight == 1)
        rest = [asyncio.create_task(client.held()) for _ in range(10)]
        await asyncio.sleep(0)
        kubelet.pod_resources = held({"default/new": {"main": {GPU: ["a"]}}})
        await first
        for answer in await asyncio.gather(*rest):
            assert [row.pod for row in answer] == ["new"]
        assert kubelet.list_calls == 2
        assert kubelet.most_lists_in_flight == 1


async def test_a_caller_that_gives_up_does_not_take_the_others_along(short_dir: Path) -> None:
    async with asking(short_dir) as (kubelet, client):
        kubelet.list_delay_s = 0.2
        leader = asyncio.create_task(client.held())
        follower = asyncio.create_task(client.held())
        await until(lambda: kubelet.lists_in_flight == 1)
        leader.cancel()
        assert await follower == ()


@pytest.mark.parametrize("status", ["RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "PERMISSION_DENIED", "INTERNAL"])
async def test_every_refusal_is_unreachable_and_the_next_call_may_succeed(
    short_dir: Path, status: str
) -> None:
    async with asking(short_dir) as (kubelet, client):
        kubelet.pod_resources = getattr(grpc.StatusCode, status)
        with pytest.raises(Unreachable, match=status):
            await client.held()
        kubelet.pod_resources = held({})
        assert await client.held() == ()


async def test_all_who_share_a_failed_call_are_told(short_dir: Path) -> None:
    client = PodResourcesClient(short_dir / "none.sock")
    failures = await asyncio.gather(*(client.held() for _ in range(3)), return_exceptions=True)
    assert [type(failure) for failure in failures] == [Unreachable] * 3
    assert "no such socket" in str(failures[0])


async def test_a_kubelet_that_says_nothing_is_cut_off(short_dir: Path) -> None:
    path = short_dir / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        client = PodResourcesClient(path, timeout_s=0.1)
        with pytest.raises(Unreachable, match="in time"):
            await client.held()


async def test_a_peer_that_speaks_no_grpc_is_unreachable(short_dir: Path) -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
        await writer.drain()
        writer.close()

    path = short_dir / "babble.sock"
    server = await asyncio.start_unix_server(babble, path)
    async with server:
        with pytest.raises(Unreachable):
            await PodResourcesClient(path, timeout_s=1.0).held()


@pytest.mark.parametrize("rounds", range(8))
async def test_a_kubelet_that_ends_while_it_is_connected_to_is_unreachable(
    short_dir: Path, rounds: int
) -> None:
    """Also in the one round of the loop in which the connection is made and not yet used."""
    path = short_dir / "ends.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        asking = asyncio.create_task(PodResourcesClient(path, timeout_s=1.0).held())
        for _ in range(rounds):
            await asyncio.sleep(0)
    with pytest.raises(Unreachable):
        await asking


async def test_a_restarted_kubelet_is_asked_again(short_dir: Path) -> None:
    async with asking(short_dir) as (kubelet, client):
        assert await client.held() == ()
        await asyncio.to_thread(kubelet.stop)
        with pytest.raises(Unreachable):
            await client.held()
        await asyncio.to_thread(kubelet.start)
        assert await client.held() == ()


@pytest.mark.parametrize(("mebibytes", "readable"), [(15, True), (17, False)])
async def test_answers_up_to_sixteen_mebibytes_are_read(
    short_dir: Path, mebibytes: int, readable: bool
) -> None:
    async with asking(short_dir, timeout_s=30.0) as (kubelet, client):
        kubelet.pod_resources = held({"default/big": {"main": {GPU: ["i" * 2**20] * mebibytes}}})
        if readable:
            (row,) = await client.held()
            assert len(row.ids) == mebibytes
        else:
            with pytest.raises(Unreachable, match="larger than max"):
                await client.held()

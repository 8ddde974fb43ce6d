"""The device plugin's server, called by an independent gRPC implementation."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from partage.edges.kubelet.server import PRE_START_LIMIT_S, PluginServer
from partage.errors import InputError, Unreachable
from partage.model.ids import ShareId
from partage.model.share import DeviceRow
from tests.edges.kubelet.shelf import Shelf
from tests.kubelet_script import PluginCalls, grpc, until


@asynccontextmanager
async def served(
    shelf: Shelf, path: Path, *, pre_start_limit_s: float = PRE_START_LIMIT_S
) -> AsyncIterator[PluginCalls]:
    server = PluginServer(shelf, path, pre_start_limit_s=pre_start_limit_s)
    await server.start()
    calls = PluginCalls(path)
    try:
        yield calls
    finally:
        await asyncio.to_thread(calls.close)
        await server.stop()


@pytest.fixture
def path(short_dir: Path) -> Path:
    return short_dir / "nvidia-gpu.sock"


async def test_options_say_what_the_handler_wants(path: Path) -> None:
    shelf = Shelf("a")
    shelf.pre_start_required = True
    async with served(shelf, path) as plugin:
        options = await asyncio.to_thread(plugin.options)
    assert options.pre_start_required
    assert options.get_preferred_allocation_available


async def test_list_and_watch_sends_the_full_list_at_once_and_then_every_change(path: Path) -> None:
    shelf = Shelf("a", "b")
    async with served(shelf, path) as plugin:
        watch = plugin.watch()
        await until(lambda: len(watch.lists) == 1)
        assert watch.health == {"a": "Healthy", "b": "Healthy"}
        await shelf.put(DeviceRow(ShareId("a"), healthy=False), DeviceRow(ShareId("b"), healthy=True))
        await until(lambda: len(watch.lists) == 2)
        assert watch.health == {"a": "Unhealthy", "b": "Healthy"}


async def test_a_list_that_did_not_change_is_not_sent_again(path: Path) -> None:
    """A wake-up without a new version stays inside; the next change is the second message."""
    shelf = Shelf("a")
    async with served(shelf, path) as plugin:
        watch = plugin.watch()
        await until(lambda: len(watch.lists) == 1)
        async with shelf._changed:
            shelf._changed.notify_all()
        await asyncio.to_thread(plugin.options)
        await shelf.put()
        await until(lambda: len(watch.lists) == 2)
        assert [len(message.devices) for message in watch.lists] == [1, 0]


async def test_an_empty_list_is_sent_and_the_stream_goes_on(path: Path) -> None:
    shelf = Shelf("a")
    async with served(shelf, path) as plugin:
        watch = plugin.watch()
        await shelf.put()
        await until(lambda: watch.lists and watch.health == {})
        await shelf.put(DeviceRow(ShareId("c"), healthy=True))
        await until(lambda: watch.health == {"c": "Healthy"})
        assert not watch.ended.is_set()


async def test_a_numa_node_is_sent_as_topology_and_none_as_no_topology(path: Path) -> None:
    shelf = Shelf()
    await shelf.put(DeviceRow(ShareId("a"), healthy=True, numa_node=1), DeviceRow(ShareId("b"), healthy=True))
    async with served(shelf, path) as plugin:
        watch = plugin.watch()
        await until(lambda: watch.lists)
        a, b = watch.lists[0].devices
        assert [node.ID for node in a.topology.nodes] == [1]
        assert not b.HasField("topology")


async def test_several_streams_see_the_same_and_end_on_their_own(path: Path) -> None:
    shelf = Shelf("a")
    async with served(shelf, path) as plugin:
        first, second = plugin.watch(), plugin.watch()
        await until(lambda: first.lists and second.lists)
        await asyncio.to_thread(first.cancel)
        await shelf.put(DeviceRow(ShareId("b"), healthy=True))
        await until(lambda: second.health == {"b": "Healthy"})
        assert first.health == {"a": "Healthy"}


async def test_a_stream_that_the_kubelet_drops_ends_without_noise(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shelf = Shelf("a")
    server = PluginServer(shelf, path)
    await server.start()
    calls = PluginCalls(path)
    watch = calls.watch()
    await until(lambda: server.watching == 1)
    await asyncio.to_thread(watch.cancel)
    await until(lambda: server.watching == 0)
    again = calls.watch()
    await until(lambda: again.lists)
    await asyncio.to_thread(calls.close)
    await until(lambda: server.watching == 0)
    await server.stop()
    assert caplog.records == []


async def test_sixty_thousand_ids_pass(path: Path) -> None:
    """As many as fit one message of 4 MiB."""
    ids = [f"GPU-12345678-1234-1234-1234-123456780000::{n}" for n in range(60_000)]
    async with served(Shelf(*ids), path) as plugin:
        watch = plugin.watch()
        await until(lambda: watch.lists, limit_s=30)
        assert [device.ID for device in watch.lists[0].devices] == ids
        assert watch.lists[0].ByteSize() < 4 * 2**20
        assert await asyncio.to_thread(plugin.preferred, ids, ids[:1], 2) == ids[:2]


async def test_allocate_answers_everything_that_a_container_gets(path: Path) -> None:
    async with served(Shelf("a", "b"), path) as plugin:
        answer = await asyncio.to_thread(plugin.allocate, ["b", "a"])
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "b,a"}
    assert [(m.container_path, m.host_path, m.read_only) for m in answer.mounts] == [("/in", "/out", True)]
    nodes = [(d.container_path, d.host_path, d.permissions) for d in answer.devices]
    assert nodes == [("/dev/nvidia0", "/host/dev/nvidia0", "rw")]
    assert dict(answer.annotations) == {"cdi.k8s.io/x": "y"}
    assert [device.name for device in answer.cdi_devices] == ["nvidia.com/gpu=0"]


async def test_fifty_allocations_at_once_are_all_answered(path: Path) -> None:
    ids = [f"d{n}" for n in range(50)]
    async with served(Shelf(*ids), path) as plugin:
        calls = [asyncio.to_thread(plugin.allocate, [device]) for device in ids]
        answers = await asyncio.gather(*calls)
    assert [answer.envs["NVIDIA_VISIBLE_DEVICES"] for answer in answers] == ids


async def test_a_refusal_reaches_the_kubelet_in_its_own_words(path: Path) -> None:
    async with served(Shelf("a"), path) as plugin:
        with pytest.raises(grpc.RpcError) as allocate:
            await asyncio.to_thread(plugin.allocate, ["no-such-id"])
        with pytest.raises(grpc.RpcError) as preferred:
            await asyncio.to_thread(plugin.preferred, ["a"], [], 2)
    assert allocate.value.code() is grpc.StatusCode.UNKNOWN
    expected = 'invalid allocation request for "nvidia.com/gpu": unknown device: no-such-id'
    assert allocate.value.details() == expected
    assert preferred.value.code() is grpc.StatusCode.UNKNOWN
    assert preferred.value.details() == "2 asked, 1 free: \u00e9puis\u00e9"


async def test_a_bug_in_one_answer_is_logged_and_the_server_lives_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(Shelf("a", "bug"), path) as plugin:
        with pytest.raises(grpc.RpcError) as error:
            await asyncio.to_thread(plugin.allocate, ["bug"])
        assert await asyncio.to_thread(plugin.allocate, ["a"])
    assert error.value.code() is grpc.StatusCode.INTERNAL
    assert error.value.details() == "ZeroDivisionError: a bug of ours"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].exc_info


async def test_pre_start_waits_for_the_handler(path: Path) -> None:
    shelf = Shelf("a")
    gate = asyncio.Event()
    shelf.before_start = gate.wait
    async with served(shelf, path) as plugin:
        call = asyncio.create_task(asyncio.to_thread(plugin.pre_start, ["a"]))
        await until(lambda: shelf.started == [("a",)])
        assert not call.done()
        gate.set()
        await call


async def test_pre_start_that_fails_does_not_keep_a_container_from_starting(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf("a")
    shelf.before_start = lambda: ValueError("broken")
    async with served(shelf, path) as plugin:
        await asyncio.to_thread(plugin.pre_start, ["a"])
    assert "preparing a container failed" in caplog.text


async def test_pre_start_that_hangs_does_not_keep_a_container_from_starting(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf("a")
    shelf.before_start = asyncio.Event().wait
    async with served(shelf, path, pre_start_limit_s=0.05) as plugin:
        await asyncio.to_thread(plugin.pre_start, ["a"])
    assert "without preparation" in caplog.text


async def test_stopping_ends_streams_and_takes_the_socket_away(path: Path) -> None:
    server = PluginServer(Shelf("a"), path)
    await server.start()
    calls = PluginCalls(path)
    watch = calls.watch()
    await until(lambda: watch.lists)
    assert await server.stop()
    await until(watch.ended.is_set)
    assert watch.error is not None
    assert not path.exists()
    assert not await server.stop()
    await asyncio.to_thread(calls.close)


async def test_a_stale_socket_is_replaced_and_a_foreign_one_survives_our_stop(path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    async with served(Shelf("a"), path) as plugin:
        assert await asyncio.to_thread(plugin.allocate, ["a"])
        path.unlink()
        foreign = socket.socket(socket.AF_UNIX)
        foreign.bind(str(path))
    assert path.is_socket()
    foreign.close()


def test_a_path_that_no_socket_can_have_is_refused_before_anything_is_served() -> None:
    longest = Path("/" + "x" * 106)
    PluginServer(Shelf.__new__(Shelf), longest)
    with pytest.raises(InputError, match="108 bytes"):
        PluginServer(Shelf.__new__(Shelf), Path("/" + "x" * 107))
    with pytest.raises(InputError, match="108 bytes"):
        PluginServer(Shelf.__new__(Shelf), Path("/" + "x" * 105 + "\u00e9"))


async def test_a_directory_that_is_not_there_may_come_later(short_dir: Path) -> None:
    path = short_dir / "later" / "a.sock"
    server = PluginServer(Shelf("a"), path)
    with pytest.raises(Unreachable):
        await server.start()
    path.parent.mkdir()
    await server.start()
    await server.stop()


@pytest.mark.parametrize("seed", range(5))
async def test_garbage_on_the_socket_affects_no_other_connection(
    path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    noise = random.Random(seed).randbytes(4000)
    async with served(Shelf("a"), path) as plugin:
        watch = plugin.watch()
        await until(lambda: watch.lists)
        for garbage in (noise, preface + noise, b""):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(garbage)
            writer.write_eof()
            await reader.read()
            writer.close()
        assert await asyncio.to_thread(plugin.allocate, ["a"])
        assert not watch.ended.is_set()
    assert caplog.records == []

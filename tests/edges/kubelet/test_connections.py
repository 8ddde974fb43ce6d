"""The plugin's side of a connection: it writes seldom, and is closed when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpclib.client import Channel

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated.deviceplugin_grpc import DevicePluginStub
from partage.edges.kubelet.connections import BatchedTransport, ClosingServer
from partage.edges.kubelet.server import PluginServer
from tests.edges.kubelet.shelf import Shelf


class Wire(asyncio.Transport):
    """Remembers every write that reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        pass


async def test_what_is_written_within_one_round_is_sent_together() -> None:
    wire = Wire()
    writer = BatchedTransport(wire)
    writer.write(b"headers ")
    writer.write(b"message")
    assert wire.sent == []
    await asyncio.sleep(0)
    assert wire.sent == [b"headers message"]
    writer.write(b"later")
    await asyncio.sleep(0)
    assert wire.sent == [b"headers message", b"later"]


async def test_an_acknowledgement_leaves_together_with_the_answer_to_what_was_read() -> None:
    """As a connection reads: it acknowledges, then a task is begun, which answers in its first step."""
    wire = Wire()
    writer = BatchedTransport(wire)

    async def answer() -> None:
        writer.write(b"answer")

    writer.hold()
    writer.write(b"acknowledged ")
    answering = asyncio.create_task(answer())
    writer.release()
    await answering
    await asyncio.sleep(0)
    assert wire.sent == [b"acknowledged answer"]


async def test_an_acknowledgement_without_an_answer_leaves_as_well() -> None:
    wire = Wire()
    writer = BatchedTransport(wire)
    writer.hold()
    writer.write(b"acknowledged")
    writer.release()
    await asyncio.sleep(0)
    assert wire.sent == [b"acknowledged"]


async def test_what_waits_is_sent_before_the_connection_closes() -> None:
    wire = Wire()
    writer = BatchedTransport(wire)
    writer.write(b"last words")
    writer.close()
    assert wire.sent == [b"last words"]


async def test_of_ended_calls_few_are_remembered_on_both_sides(short_dir: Path) -> None:
    """A connection lives for weeks, and has a call every ten seconds."""
    path = short_dir / "s.sock"
    server = PluginServer(Shelf("a"), path)
    await server.start()
    async with Channel(path=str(path)) as channel:
        for _ in range(300):
            await DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty())
        assert server._server is not None
        (theirs,) = server._server._connections
        for protocol in (theirs, channel._protocol):
            assert protocol is not None
            assert len(protocol.connection._connection._closed_streams) <= 256
    await server.stop()


@pytest.mark.parametrize("rounds", range(6))
async def test_a_connection_that_is_accepted_as_the_server_stops_is_closed(
    short_dir: Path, rounds: int
) -> None:
    """asyncio has accepted it and has not yet told the server: it would stay open, and silent, for ever.

    rounds: of the loop before the stop.
    """
    amiss: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: amiss.append(context["message"]))
    path = short_dir / "plugin.sock"
    server = ClosingServer([])
    await server.serve_at(path)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.setblocking(False)
        peer.connect(str(path))
        for _ in range(rounds):
            await asyncio.sleep(0)  # one round of the loop
        await server.stop()
        async with asyncio.timeout(5):
            received = b"".join([one async for one in _everything(peer)])
        assert len(received) < 4096, "nothing, or a greeting"
    assert not amiss


@pytest.mark.parametrize("rounds", range(4))
async def test_a_server_that_is_cancelled_as_it_starts_serves_nothing(short_dir: Path, rounds: int) -> None:
    """rounds: of the loop before that; after three it has started."""
    path = short_dir / "plugin.sock"
    server = ClosingServer([])
    starting = asyncio.create_task(server.serve_at(path))
    for _ in range(rounds):
        await asyncio.sleep(0)
    cancelled = starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    if not cancelled:
        await server.stop()
    with socket.socket(socket.AF_UNIX) as peer, pytest.raises(OSError, match=r"refused|No such file"):
        peer.connect(str(path))


async def test_a_stop_that_is_cancelled_closes_all_the_same(short_dir: Path) -> None:
    path = short_dir / "plugin.sock"
    server = ClosingServer([])
    await server.serve_at(path)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    assert stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    with socket.socket(socket.AF_UNIX) as peer, pytest.raises(ConnectionRefusedError):
        peer.connect(str(path))


async def _everything(peer: socket.socket) -> AsyncIterator[bytes]:
    """What is received until the other end closes; the kernel resets what nobody has accepted."""
    with contextlib.suppress(ConnectionResetError):
        while part := await asyncio.get_running_loop().sock_recv(peer, 4096):
            yield part

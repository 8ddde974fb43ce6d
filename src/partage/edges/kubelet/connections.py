"""The plugin's side of connections with the kubelet: few system calls, and closed when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakSet

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream
from h2.connection import H2Connection
from hyperframe.frame import Frame

_Request = TypeVar("_Request")
_READ_BYTES = 64 * 1024

# h2 formats every received frame for a trace that is never read (H2Connection._receive_frame, 4.4): one
# fifteenth of the time of a call. Nothing else formats frames.
Frame.__repr__ = object.__repr__  # type: ignore[method-assign]

# h2 remembers 65,536 ended calls of a connection, 190 bytes each: 12 MiB, after a week of PodResources every
# ten seconds. It needs them for frames that arrive after the end of their call; those are milliseconds late.
H2Connection.MAX_CLOSED_STREAMS = 256


class BatchedTransport(asyncio.Transport):
    """Sends everything that is written in one round of the event loop in one system call.

    grpclib writes headers, message and trailers of an answer separately, and each write wakes the peer.
    Together they take a fifth less time on both sides.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes | bytearray | memoryview] = []
        self._held = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._waiting and not self._held:
            self._loop.call_soon(self._send)
        self._waiting.append(data)

    def hold(self) -> None:
        """Send nothing before ``release``, so that answers to what is being read now are sent together."""
        self._held = True

    def release(self) -> None:
        """Send what is waiting, after everything that is scheduled in the loop already."""
        self._held = False
        if self._waiting:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._transport.write(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 (as asyncio's)
        return self._transport.get_extra_info(name, default)


class _Connection(H2Protocol, asyncio.BufferedProtocol):
    """Reads into one buffer: asyncio would allocate 256 KiB for every read."""

    def __init__(
        self,
        *parts: Any,  # noqa: ANN401 (as grpclib's)
        into: memoryview,
        ended: Callable[[], bool],
        lost: Callable[[], None],
    ) -> None:
        super().__init__(*parts)
        self._into = into
        self._ended = ended
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writer = BatchedTransport(cast("asyncio.Transport", transport))
        super().connection_made(self._writer)
        if self._ended():  # accepted before the server stopped, and not known to it then
            self._writer.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._into

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` were read. The acknowledgement of a message is sent together with its answer."""
        self._writer.hold()
        try:
            self.data_received(bytes(self._into[:nbytes]))
        finally:
            self._writer.release()

    @property
    def is_open(self) -> bool:
        """An accepted connection has no ``connection`` before the loop has called ``connection_made``."""
        return hasattr(self, "connection") and not self.connection.is_closing()


class ClosingServer(Server):
    """grpclib's server, which also closes its connections when it stops.

    grpclib only cancels the calls: the kubelet's connection would stay open and silent, and the kubelet
    would consider the resource served. From Python 3.12 on, ``wait_closed`` would also wait for it.
    """

    def __init__(self, handlers: list[Any]) -> None:
        super().__init__(handlers)
        self._connections: WeakSet[_Connection] = WeakSet()
        self._ended = False
        self.connection_lost = asyncio.Event()
        self._read_into = memoryview(bytearray(_READ_BYTES))  # shared: received bytes are copied at once

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        parts = (plain.handler, plain.config, plain.h2_config)
        connection = _Connection(
            *parts, into=self._read_into, ended=lambda: self._ended, lost=self.connection_lost.set
        )
        self._connections.add(connection)
        return connection

    async def serve_at(self, path: Path) -> None:
        """Serve at a path where nothing is. Raises OSError. Cancelled, it serves nothing: asyncio serves
        before its call returns, and would go on.
        """
        starting = asyncio.ensure_future(self.start(path=str(path)))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await starting
                await self.stop()
            raise

    async def _stop_accepting(self) -> None:
        """What asyncio has accepted becomes a connection two rounds of its loop later. If the server closes
        in between, asyncio fails, and the socket stays open."""
        loop = asyncio.get_running_loop()
        listeners = self._server.sockets if isinstance(self._server, asyncio.Server) else ()
        for listener in listeners:
            loop.remove_reader(listener.fileno())
        for _ in range(2):
            await asyncio.sleep(0)

    async def stop(self) -> bool:
        """End all calls and connections. True if a connection was open."""
        self._ended = True
        try:
            await self._stop_accepting()
        finally:  # also if it is cancelled
            self.close()
            connected = [connection for connection in self._connections if connection.is_open]
            for connection in connected:
                connection.processor.close("the server stops")
        await self.wait_closed()
        return bool(connected)


async def request_of(stream: Stream[_Request, Any]) -> _Request:
    """The one message of the call. Raises GRPCError where there is none."""
    request = await stream.recv_message()
    if request is None:
        raise GRPCError(Status.INVALID_ARGUMENT, "the call carries no message")
    return request

"""The device plugin of one resource: a gRPC server on a unix socket that calls a PluginHandler."""

# ruff: noqa: N802  (gRPC's methods are called as the protocol calls them)
from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import Connection
from grpclib.server import Stream
from msgspec.structs import replace

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated.deviceplugin_grpc import DevicePluginBase
from partage.edges.kubelet.connections import ClosingServer, request_of
from partage.edges.kubelet.messages import answer_message, device_list_message, share_ids
from partage.edges.kubelet.port import PluginHandler
from partage.edges.kubelet.sockets import SHORTEN, SocketIdentity, remove_socket, socket_identity
from partage.errors import Unreachable
from partage.model.paths import check_socket_path
from partage.model.share import LONGEST_REFUSAL, AllocationRefused, DeviceRow
from partage.text import shortened

PRE_START_LIMIT_S = 20.0
"""Longest time for a handler's PreStartContainer. The kubelet fails the start after 30 s."""
HANG_UP_S = 0.3
"""How long a kubelet is waited for that hangs up after the end of its stream. It takes milliseconds."""
REFUSED_S = 1.0
"""A kubelet that accepts a registration opens its stream long before."""

log = logging.getLogger(__name__)


class PluginServer:
    """Serves one resource on one socket, from ``start`` to ``stop``; it can be started again."""

    def __init__(
        self,
        handler: PluginHandler,
        socket_path: Path,
        *,
        pre_start_limit_s: float = PRE_START_LIMIT_S,
        stream_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """stream_ended: called whenever a ListAndWatch stream has ended.

        Raises InputError for a path that is too long for a socket.
        """
        check_socket_path(socket_path, SHORTEN)
        self.socket_path = socket_path
        self.socket: SocketIdentity | None = None
        self._service = _DevicePlugin(handler, pre_start_limit_s, stream_ended)
        self._server: ClosingServer | None = None

    @property
    def options(self) -> pb.DevicePluginOptions:
        """The plugin's options for the kubelet."""
        return self._service.options()

    @property
    def watching(self) -> int:
        """Number of ListAndWatch streams that the kubelet has open.

        The kubelet's connection is the first that asks anything here: nobody else knows of a fresh socket
        before it, and it opens its stream on the connection on which it asked for the options. A process id
        tells less: in the agent's container that of the kubelet and of a tool on the node are both 0.
        """
        return self._service.watching

    @property
    def was_watched(self) -> bool:
        """Whether the kubelet has opened its stream, since the start."""
        return self._service.was_watched

    @property
    def asked_again(self) -> bool:
        """Whether a second connection asked for the options and opened no stream, as that of a kubelet does
        that refuses to register this path again (1.37). Only the end of our stream shows whether it did."""
        return self._service.asked_again()

    def freeze(self) -> None:
        """Send no list any more: the kubelet would take it for one of the plugin that is in our place."""
        self._service.frozen = True

    async def end_streams(self, *, unhealthy: bool) -> bool:
        """End all streams, and wait for a kubelet that hangs up. False if it did not: it stands still, or
        has lost its record of the connection, and keeps the path.

        unhealthy: the last list says so of every device. Uses no ``asyncio.timeout``, which must not be used
        by a task that was cancelled (Python before 3.11.3).
        """
        waited_for = self._service.end_streams(unhealthy=unhealthy)
        until_s = asyncio.get_running_loop().time() + HANG_UP_S
        while (
            self._server is not None
            and waited_for
            and not any(connection.is_closing() for connection in waited_for)
        ):
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return False
            self._server.connection_lost.clear()
            lost = asyncio.ensure_future(self._server.connection_lost.wait())
            await asyncio.wait({lost}, timeout=left_s)
            lost.cancel()
        return True

    async def start(self) -> None:
        """Serve; whatever file is at the path is replaced. Raises Unreachable (no directory, denied)."""
        if self._server is not None:
            raise RuntimeError(f"{self.socket_path} is being served already")
        # A kubelet drops streams regularly; grpclib logs it at level info.
        logging.getLogger("grpclib.server").setLevel(logging.WARNING)
        server = ClosingServer([self._service])
        try:
            self.socket_path.unlink(missing_ok=True)  # asyncio would remove a socket only
            await server.serve_at(self.socket_path)
        except OSError as error:
            raise Unreachable(f"cannot serve {self.socket_path}: {error.strerror or error}") from error
        self._server = server
        self.socket = socket_identity(self.socket_path)

    async def stop(self) -> bool:
        """End all streams and connections, remove the socket. True if the kubelet was connected."""
        server, self._server = self._server, None
        if server is None:
            return False
        remove_socket(self.socket_path, self.socket)
        self.socket = None
        return await server.stop()


class _DevicePlugin(DevicePluginBase):
    """The five calls. None of them waits, except for the stream itself and PreStartContainer."""

    def __init__(
        self, handler: PluginHandler, pre_start_limit_s: float, stream_ended: Callable[[], None]
    ) -> None:
        self._handler = handler
        self._pre_start_limit_s = pre_start_limit_s
        self._stream_ended = stream_ended
        self._kubelet: Connection | None = None
        self._asked: dict[Connection, float] = {}
        self._streams: dict[asyncio.Task[None], Connection] = {}
        self._last_rows: Callable[[], tuple[DeviceRow, ...]] | None = None
        self.was_watched = self.frozen = False

    @property
    def watching(self) -> int:
        return sum(connection is self._kubelet for connection in self._streams.values())

    def asked_again(self) -> bool:
        long_ago_s = asyncio.get_running_loop().time() - REFUSED_S
        return any(at_s <= long_ago_s for at_s in self._asked.values())

    def end_streams(self, *, unhealthy: bool) -> list[Connection]:
        """Which connections the kubelet may have. Streams that are open end after the next round."""
        self._last_rows = self._unhealthy_rows if unhealthy else tuple
        for task in self._streams:
            task.cancel()
        mine = [self._kubelet] if self._kubelet is not None else []
        return [connection for connection in (*mine, *self._asked) if not connection.is_closing()]

    def _unhealthy_rows(self) -> tuple[DeviceRow, ...]:
        return tuple(replace(row, healthy=False) for row in self._handler.devices().rows)

    def options(self) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(
            pre_start_required=self._handler.pre_start_required, get_preferred_allocation_available=True
        )

    async def GetDevicePluginOptions(self, stream: Stream[pb.Empty, pb.DevicePluginOptions]) -> None:
        await request_of(stream)
        connection = _connection(stream)
        if self._kubelet is None:
            self._kubelet = connection
        elif connection is not self._kubelet:
            self._asked[connection] = asyncio.get_running_loop().time()
        with self._answering("GetDevicePluginOptions"):
            options = self.options()
        await stream.send_message(options)

    async def ListAndWatch(self, stream: Stream[pb.Empty, pb.ListAndWatchResponse]) -> None:
        await request_of(stream)
        connection, task = _connection(stream), asyncio.current_task()
        assert task is not None
        if self._kubelet is None:
            self._kubelet = connection
        self.was_watched |= connection is self._kubelet
        self._asked.pop(connection, None)
        self._streams[task] = connection
        try:
            await self._list_and_watch(stream)
        except asyncio.CancelledError:
            if self._last_rows is None:
                raise
            task.uncancel()
            if rows := self._last_rows():
                await stream.send_message(device_list_message(rows))
        finally:
            del self._streams[task]
            self._stream_ended()

    async def _list_and_watch(self, stream: Stream[pb.Empty, pb.ListAndWatchResponse]) -> None:
        """Send the list, and again whenever its version changes; a slow reader gets only the newest one."""
        seen: int | None = None
        while True:
            with self._answering("ListAndWatch"):
                devices = self._handler.devices()
            if devices.version != seen and not self.frozen:
                await stream.send_message(device_list_message(devices.rows))
            seen = devices.version
            with self._answering("ListAndWatch"):
                await self._handler.changed(seen)

    async def GetPreferredAllocation(
        self, stream: Stream[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse]
    ) -> None:
        request = await request_of(stream)
        response = pb.PreferredAllocationResponse()
        with self._answering("GetPreferredAllocation"):
            for asked in request.container_requests:
                available = share_ids(asked.available_deviceIDs)
                must_include = share_ids(asked.must_include_deviceIDs)
                ids = self._handler.preferred(available, must_include, asked.allocation_size)
                response.container_responses.add(deviceIDs=ids)
        await stream.send_message(response)

    async def Allocate(self, stream: Stream[pb.AllocateRequest, pb.AllocateResponse]) -> None:
        request = await request_of(stream)
        with self._answering("Allocate"):
            asked = [share_ids(container.devices_ids) for container in request.container_requests]
            answers = [await self._handler.allocate(ids) for ids in asked]
            response = pb.AllocateResponse(container_responses=map(answer_message, answers))
        await stream.send_message(response)

    async def PreStartContainer(
        self, stream: Stream[pb.PreStartContainerRequest, pb.PreStartContainerResponse]
    ) -> None:
        request = await request_of(stream)
        await self._pre_start(request)
        await stream.send_message(pb.PreStartContainerResponse())

    async def _pre_start(self, request: pb.PreStartContainerRequest) -> None:
        resource = self._handler.resource
        try:
            async with asyncio.timeout(self._pre_start_limit_s):
                await self._handler.pre_start(share_ids(request.devices_ids))
        except TimeoutError:
            log.warning("container started without preparation", extra={"resource": resource})
        except Exception:  # no error may keep a container from starting
            log.exception("preparing a container failed", extra={"resource": resource})

    @contextmanager
    def _answering(self, call: str) -> Iterator[None]:
        """Pass the text of a refusal to the kubelet. A bug is logged and ends only this call."""
        try:
            yield
        except AllocationRefused as refusal:
            # In Go an error without a status becomes UNKNOWN: the pod's events are as with NVIDIA's plugin.
            raise GRPCError(Status.UNKNOWN, str(refusal)) from refusal
        except Exception as error:  # the server must survive a bug in one answer
            log.exception("a call failed", extra={"call": call, "resource": self._handler.resource})
            reason = shortened(f"{type(error).__name__}: {error}", LONGEST_REFUSAL)
            raise GRPCError(Status.INTERNAL, reason) from error


def _connection(stream: Stream[Any, Any]) -> Connection:
    """The connection of a call. grpclib tells only the peer's address, which a unix socket has not."""
    return stream._stream.connection  # noqa: SLF001

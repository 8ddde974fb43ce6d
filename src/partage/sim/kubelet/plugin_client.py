"""The embedded kubelet's side of one device plugin's socket, and how a plugin's answers break the kubelet's
protocol or contradict each other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import H2Error

from partage.edges.host.own_task import bounded
from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated.deviceplugin_grpc import DevicePluginStub
from partage.edges.kubelet.messages import (
    API_VERSION,
    HEALTHY,
    LONGEST_MESSAGE,
    UNHEALTHY,
    LimitedCodec,
    MessageTooLong,
    share_ids,
)
from partage.model.ids import ShareId, is_reserved_domain
from partage.model.share import ContainerAllocation, DeviceNode, Mount

LONGEST_ID = 63
"""In characters. The limit is documented; the kubelet does not enforce it."""

_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_CDI = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z][\w.-]*=[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def registration_refusal(request: pb.RegisterRequest) -> str | None:
    """Why a kubelet refuses a registration, in the kubelet's words; None where it accepts."""
    if request.version != API_VERSION:
        return (
            f"requested API version {request.version!r} is not supported by kubelet. Supported: {API_VERSION}"
        )
    domain, _, _ = request.resource_name.partition("/")
    if is_reserved_domain(domain) or not _RESOURCE.fullmatch(request.resource_name):
        return f"the ResourceName {request.resource_name!r} is invalid"
    if "/" in request.endpoint or not request.endpoint:
        return f"endpoint {request.endpoint!r} is not the base name of a socket"
    return None


def list_errors(devices: Sequence[pb.Device]) -> Iterator[str]:
    """What is wrong with a list of devices."""
    seen: set[str] = set()
    for device in devices:
        if not device.ID or device.ID in seen:
            yield f"device id {device.ID!r} is listed twice, or empty"
        if len(device.ID) > LONGEST_ID:
            yield f"device id {device.ID!r} is longer than {LONGEST_ID} characters"
        if device.health not in (HEALTHY, UNHEALTHY):
            yield f"device {device.ID!r} has health {device.health!r}"
        seen.add(device.ID)


def preference_errors(
    answer: Sequence[ShareId], available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
) -> Iterator[str]:
    """What is wrong with a preferred allocation."""
    if len(answer) != size or len(set(answer)) != len(answer):
        yield f"preferred allocation of {size} is {list(answer)}"
    if stray := set(answer) - set(available):
        yield f"preferred allocation has {sorted(stray)}, which are not available"
    if missing := set(must_include) - set(answer):
        yield f"preferred allocation lacks {sorted(missing)}, which must be included"


def allocation_errors(answer: pb.ContainerAllocateResponse) -> Iterator[str]:
    """What is wrong with an answer to Allocate: a container runtime would fail on it."""
    for name in answer.envs:
        if not _VARIABLE.fullmatch(name):
            yield f"environment variable {name!r} has no valid name"
    for path in [*(mount.container_path for mount in answer.mounts), *(m.host_path for m in answer.mounts)]:
        if not path.startswith("/"):
            yield f"mount path {path!r} is not absolute"
    for node in answer.devices:
        if not node.container_path.startswith("/") or not node.host_path.startswith("/"):
            yield f"device path {node.host_path!r} or {node.container_path!r} is not absolute"
        if not node.permissions or set(node.permissions) - set("rwm"):
            yield f"device {node.host_path!r} has permissions {node.permissions!r}"
    for device in answer.cdi_devices:
        if not _CDI.fullmatch(device.name):
            yield f"CDI device {device.name!r} is not vendor/class=name"


PRE_START_TIMEOUT_S = 30.0
"""The kubelet's only deadline; it waits for Allocate and GetPreferredAllocation without limit."""


class PluginError(Exception):
    """A call that failed, with the text of Go's gRPC."""


class PluginClient:
    """Calls one plugin. ``report`` is called for all that contradicts the protocol."""

    def __init__(self, socket_path: Path, resource: str, report: Callable[[str], None]) -> None:
        self.resource = resource
        self.path = socket_path
        self._report = report
        self._channel = Channel(path=str(socket_path), codec=LimitedCodec(LONGEST_MESSAGE))
        self._closed = False
        self._stub = DevicePluginStub(self._channel)

    async def options(self) -> pb.DevicePluginOptions:
        """Which optional calls the plugin has. Raises PluginError."""
        with self._calling():
            return await self._stub.GetDevicePluginOptions(pb.Empty())

    async def watch(
        self, opened: asyncio.Event, listed: Callable[[Sequence[pb.Device]], Awaitable[None]]
    ) -> None:
        """Read lists until the stream ends. ``opened`` is set once the plugin has been asked."""
        with self._calling():
            async with self._stub.ListAndWatch.open() as stream:
                await stream.send_message(pb.Empty(), end=True)
                opened.set()
                async for message in stream:
                    self._report_all(list_errors(message.devices))
                    await listed(message.devices)

    async def preferred(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        """Raises PluginError."""
        request = pb.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        with self._calling():
            response = await self._stub.GetPreferredAllocation(request)
        if len(response.container_responses) != 1:
            self._report(f"{self.resource}: GetPreferredAllocation has no answer for its one container")
            return []
        answer = share_ids(response.container_responses[0].deviceIDs)
        self._report_all(preference_errors(answer, available, must_include, size))
        return answer

    async def allocate(self, ids: Sequence[ShareId]) -> ContainerAllocation:
        """Raises PluginError."""
        request = pb.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        with self._calling():
            response = await self._stub.Allocate(request)
        if len(response.container_responses) != 1:
            self._report(f"{self.resource}: Allocate has no answer for its one container")
            raise PluginError("no containers return in allocation response")
        self._report_all(allocation_errors(response.container_responses[0]))
        return _answer(response.container_responses[0])

    async def pre_start(self, ids: Sequence[ShareId]) -> None:
        """Raises PluginError."""
        request = pb.PreStartContainerRequest(devices_ids=ids)
        with self._calling():
            await bounded(self._stub.PreStartContainer(request), PRE_START_TIMEOUT_S)

    def close(self) -> None:
        """End the connection and its stream. All calls fail from now on."""
        self._closed = True
        self._channel.close()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        if self._closed:  # grpclib would connect again
            raise PluginError(_rpc_error(Status.CANCELLED, "grpc: the client connection is closing"))
        try:
            with _with_errors_of_go():
                yield
        finally:
            if self._closed:  # it may have been connecting when it was closed
                self._channel.close()

    def _report_all(self, protocol_errors: Iterator[str]) -> None:
        for protocol_error in protocol_errors:
            self._report(f"{self.resource}: {protocol_error}")


@contextmanager
def _with_errors_of_go() -> Iterator[None]:
    try:
        yield
    except GRPCError as error:
        raise PluginError(_rpc_error(error.status, error.message or "")) from error
    except TimeoutError as error:
        raise PluginError(_rpc_error(Status.DEADLINE_EXCEEDED, "context deadline exceeded")) from error
    except MessageTooLong as error:
        raise PluginError(_rpc_error(Status.RESOURCE_EXHAUSTED, f"grpc: {error}")) from error
    except AttributeError as error:
        # grpclib raises this for a connection that was lost before its first use.
        if error.name != "_transport":
            raise
        raise PluginError(_rpc_error(Status.UNAVAILABLE, "transport: the connection is closing")) from error
    except (OSError, StreamTerminatedError, H2Error) as error:
        raise PluginError(_rpc_error(Status.UNAVAILABLE, f"transport: {error}")) from error


def _rpc_error(status: Status, text: str) -> str:
    code = "Canceled" if status is Status.CANCELLED else status.name.title().replace("_", "")
    return f"rpc error: code = {code} desc = {text}"


def _answer(response: pb.ContainerAllocateResponse) -> ContainerAllocation:
    return ContainerAllocation(
        envs=dict(response.envs),
        mounts=tuple(Mount(m.container_path, m.host_path, m.read_only) for m in response.mounts),
        devices=tuple(DeviceNode(d.container_path, d.host_path, d.permissions) for d in response.devices),
        annotations=dict(response.annotations),
        cdi_devices=tuple(device.name for device in response.cdi_devices),
    )

"""A scripted kubelet on grpcio: an implementation of the kubelet's side that shares no gRPC code with ours.

It does what it is told: it serves Registration and PodResources, and calls plugins. It is synchronous, so
that a test or a benchmark can drive an agent in another process; inside a running loop, call it through
``asyncio.to_thread``.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc as _grpc

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated import podresources_pb2 as rpb

grpc: Any = _grpc  # it brings no types
LIMIT_S = 10.0
KUBELET_SOCKET = "kubelet.sock"


class NotInTime(AssertionError):
    """A condition did not come true within its limit."""


def wait_for(condition: Callable[[], Any], limit_s: float = LIMIT_S, what: str = "") -> Any:
    """Wait until ``condition()`` is true, and return its value."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise NotInTime(f"not within {limit_s} s: {what or condition}")
        time.sleep(0.002)
    return value


async def until(condition: Callable[[], Any], limit_s: float = LIMIT_S, what: str = "") -> Any:
    """``wait_for`` inside a loop that has to go on meanwhile."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise NotInTime(f"not within {limit_s} s: {what or condition}")
        await asyncio.sleep(0.002)
    return value


def held(pods: Mapping[str, Mapping[str, Mapping[str, Iterable[str]]]]) -> rpb.ListPodResourcesResponse:
    """A PodResources answer from ``{"namespace/pod": {container: {resource: ids}}}``.

    Each id has an entry of its own, as the kubelet's have.
    """
    response = rpb.ListPodResourcesResponse()
    for key, containers in pods.items():
        namespace, _, name = key.partition("/")
        pod = response.pod_resources.add(name=name, namespace=namespace)
        for container_name, resources in containers.items():
            container = pod.containers.add(name=container_name)
            for resource, ids in resources.items():
                for device in ids:
                    container.devices.add(resource_name=resource, device_ids=[device])
    return response


@dataclass
class Watch:
    """One ListAndWatch stream: every list that came, with the time of its coming."""

    call: Any
    lists: list[pb.ListAndWatchResponse] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: Any = None
    ended: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        try:
            for message in self.call:
                self.times.append(time.monotonic())
                self.lists.append(message)
        except grpc.RpcError as error:
            self.error = error
        finally:
            self.ended.set()

    @property
    def health(self) -> dict[str, str]:
        """The last list, as id to health."""
        return {device.ID: device.health for device in self.lists[-1].devices} if self.lists else {}

    def cancel(self) -> None:
        self.call.cancel()
        self.ended.wait(LIMIT_S)


class PluginCalls:
    """The kubelet's calls to one plugin socket."""

    def __init__(self, socket_path: Path) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix://{socket_path}", options)
        self.options_call = self._unary("GetDevicePluginOptions", pb.Empty, pb.DevicePluginOptions)
        self.preferred_call = self._unary(
            "GetPreferredAllocation", pb.PreferredAllocationRequest, pb.PreferredAllocationResponse
        )
        self.allocate_call = self._unary("Allocate", pb.AllocateRequest, pb.AllocateResponse)
        self.pre_start_call = self._unary(
            "PreStartContainer", pb.PreStartContainerRequest, pb.PreStartContainerResponse
        )
        self._watch_call = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=pb.Empty.SerializeToString,
            response_deserializer=pb.ListAndWatchResponse.FromString,
        )
        self._threads: list[threading.Thread] = []

    def _unary(self, name: str, request: Any, response: Any) -> Any:
        return self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    def options(self) -> pb.DevicePluginOptions:
        answer: pb.DevicePluginOptions = self.options_call(pb.Empty(), timeout=LIMIT_S)
        return answer

    def preferred(self, available: Iterable[str], must_include: Iterable[str], size: int) -> list[str]:
        request = pb.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        response = self.preferred_call(request, timeout=LIMIT_S)
        return list(response.container_responses[0].deviceIDs)

    def allocate(self, ids: Iterable[str]) -> pb.ContainerAllocateResponse:
        request = pb.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        answer: pb.AllocateResponse = self.allocate_call(request, timeout=LIMIT_S)
        return answer.container_responses[0]

    def pre_start(self, ids: Iterable[str], timeout_s: float = LIMIT_S) -> None:
        self.pre_start_call(pb.PreStartContainerRequest(devices_ids=ids), timeout=timeout_s)

    def watch(self) -> Watch:
        """Open a stream; lists gather on a thread."""
        watch = Watch(self._watch_call(pb.Empty()))
        thread = threading.Thread(target=watch.read, daemon=True)
        thread.start()
        self._threads.append(thread)
        return watch

    def close(self) -> None:
        self._channel.close()
        for thread in self._threads:
            thread.join(LIMIT_S)


@dataclass
class Registered:
    """One Register call, with what the plugin said when it was asked before the answer."""

    time: float
    request: pb.RegisterRequest
    options: pb.DevicePluginOptions | None = None
    calls: PluginCalls | None = None
    watch: Watch | None = None


class ScriptedKubelet:
    """Serves kubelet.sock in a plugin directory, and a pod-resources socket where one is named.

    answers:     False leaves every Register without an answer.
    refuses:     a text with which every Register is refused.
    asks_back:   ask for the options and open ListAndWatch before Register is answered, as a kubelet does.
    pod_resources: what List answers; a grpc.StatusCode refuses instead.
    """

    def __init__(self, kubelet_dir: Path, pod_resources_socket: Path | None = None) -> None:
        self.dir = kubelet_dir
        self.socket = kubelet_dir / KUBELET_SOCKET
        self.pod_resources_socket = pod_resources_socket
        self.answers = True
        self.refuses = ""
        self.asks_back = True
        self.pod_resources: Any = held({})
        self.list_delay_s = 0.0
        self.list_calls = 0
        self.lists_in_flight = 0
        self.most_lists_in_flight = 0
        self.registered: list[Registered] = []
        self._released = threading.Event()
        self._servers: list[Any] = []

    def start(self) -> None:
        self.dir.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._released = threading.Event()
        handlers = {"Register": _handler(self._register, pb.RegisterRequest)}
        self._serve(self.socket, "v1beta1.Registration", handlers)
        if self.pod_resources_socket is not None:
            self.pod_resources_socket.parent.mkdir(parents=True, exist_ok=True)
            self.pod_resources_socket.unlink(missing_ok=True)
            listing = {"List": _handler(self._list, rpb.ListPodResourcesRequest)}
            self._serve(self.pod_resources_socket, "v1.PodResourcesLister", listing)

    def _serve(self, path: Path, service: str, handlers: Mapping[str, Any]) -> None:
        server = grpc.server(ThreadPoolExecutor(max_workers=8))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        if not server.add_insecure_port(f"unix://{path}"):
            raise OSError(f"cannot serve {path}")
        server.start()
        self._servers.append(server)

    def stop(self) -> None:
        """End everything; plugins' streams break, sockets of plugins stay."""
        self._released.set()
        for registered in self.registered:
            if registered.calls is not None:
                registered.calls.close()
        for server in self._servers:
            server.stop(None).wait(LIMIT_S)
        self._servers.clear()

    def restart(self, away_s: float = 0.0) -> float:
        """Stop, empty the directory as a kubelet that starts does, start. Returns when its start began."""
        self.stop()
        time.sleep(away_s)
        self.wipe()
        began = time.monotonic()
        self.start()
        return began

    def wipe(self) -> None:
        """Remove every plugin's socket."""
        for path in self.dir.iterdir():
            if path.is_socket() and path != self.socket:
                path.unlink()

    def _register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        registered = Registered(time.monotonic(), request)
        if not self.answers:
            self.registered.append(registered)
            self._released.wait(60.0)
        if self.refuses:
            self.registered.append(registered)
            context.abort(grpc.StatusCode.UNKNOWN, self.refuses)
        if self.asks_back:
            registered.calls = PluginCalls(self.dir / request.endpoint)
            registered.options = registered.calls.options()
            registered.watch = registered.calls.watch()
            wait_for(lambda: registered.watch and registered.watch.lists, what="the first list")
        self.registered.append(registered)
        return pb.Empty()

    def _list(self, _: rpb.ListPodResourcesRequest, context: Any) -> rpb.ListPodResourcesResponse:
        self.list_calls += 1
        self.lists_in_flight += 1
        self.most_lists_in_flight = max(self.most_lists_in_flight, self.lists_in_flight)
        try:
            self._released.wait(self.list_delay_s)
            if isinstance(self.pod_resources, grpc.StatusCode):
                context.abort(self.pod_resources, "refused by the script")
            answer: rpb.ListPodResourcesResponse = self.pod_resources
            return answer
        finally:
            self.lists_in_flight -= 1

    def last(self, resource: str) -> Registered | None:
        """The latest registration of a resource."""
        found = [one for one in self.registered if one.request.resource_name == resource]
        return found[-1] if found else None


def _handler(function: Callable[[Any, Any], Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        function,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name, as pytest's do not always."""
    path = Path(tempfile.mkdtemp(prefix="ptg", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def scripted_kubelet(
    kubelet_dir: Path, pod_resources_socket: Path | None = None, *, started: bool = True
) -> Iterator[ScriptedKubelet]:
    """A kubelet for the length of a block."""
    kubelet = ScriptedKubelet(kubelet_dir, pod_resources_socket)
    if started:
        kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()

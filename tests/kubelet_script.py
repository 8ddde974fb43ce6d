"""A scripted kubelet on grpcio: an implementation of the kubelet's side that shares no gRPC code with ours.

It does what it is told: it serves Registration and PodResources, and calls plugins. It is synchronous, so
that a test or a benchmark can drive an agent in another process; inside a running loop, call it through
``asyncio.to_thread``.
"""

from __future__ import annotations

import asyncio
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
LIMIT_S = 30.0
"""A test fails if what it waits for has not come then: long, for other workers take the cores."""
KUBELET_SOCKET = "kubelet.sock"


class NotInTime(AssertionError):
    """A condition did not come true within its limit."""


class _Pauses:
    """Between two looks at a condition: a part of what was waited so far, so no core is spent on looking."""

    def __init__(self, limit_s: float, what: object) -> None:
        self._limit_s, self._what = limit_s, what
        self._begun = self._looked = time.monotonic()

    def after_no(self) -> float:
        """Seconds to the next look. Raises NotInTime."""
        now = time.monotonic()
        if now > self._begun + self._limit_s:
            raise NotInTime(f"not within {self._limit_s} s: {self._what}")
        pause_s = min(0.02, max(0.002, (now - self._begun) / 20, 4 * (now - self._looked)))
        self._looked = now + pause_s
        return pause_s


def wait_for(condition: Callable[[], Any], limit_s: float = LIMIT_S, what: str = "") -> Any:
    """Wait until ``condition()`` is true, and return its value."""
    pauses = _Pauses(limit_s, what or condition)
    while not (value := condition()):
        time.sleep(pauses.after_no())
    return value


async def until(condition: Callable[[], Any], limit_s: float = LIMIT_S, what: str = "") -> Any:
    """``wait_for`` inside a loop that has to go on meanwhile."""
    pauses = _Pauses(limit_s, what or condition)
    while not (value := condition()):
        await asyncio.sleep(pauses.after_no())
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
    then: Callable[[], None] = lambda: None

    def read(self) -> None:
        try:
            for message in self.call:
                self.times.append(time.monotonic())
                self.lists.append(message)
        except grpc.RpcError as error:
            self.error = error
        finally:
            self.ended.set()
            self.then()

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

    def watch(self, then: Callable[[], None] = lambda: None) -> Watch:
        """Open a stream; lists gather on a thread. then: called there at its end."""
        watch = Watch(self._watch_call(pb.Empty()), then=then)
        thread = threading.Thread(target=watch.read, daemon=True)
        thread.start()
        self._threads.append(thread)
        return watch

    def hang_up(self) -> None:
        """Close the connection. Its streams end."""
        self._channel.close()

    def close(self) -> None:
        self.hang_up()
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


class _Table:
    """Which client the kubelet has for each resource and path, and which endpoint it asks: the bookkeeping of
    ``plugin/v1beta1/handler.go`` and ``manager.go``, with what is surprising there. minor: of Kubernetes 1.x.
    """

    def __init__(self, minor: int) -> None:
        self._minor = minor
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Registered] = {}
        self._endpoints: dict[str, dict[str, Registered]] = {}
        self.asked: dict[str, Registered] = {}
        self.healthy: dict[str, Registered] = {}

    def _key(self, one: Registered) -> tuple[str, str]:
        """Up to 1.36 the socket does not count."""
        return one.request.resource_name, one.request.endpoint if self._minor >= 37 else ""

    def connecting(self, one: Registered) -> None:
        with self._lock:
            self._clients[self._key(one)] = one

    def failed(self, one: Registered) -> None:
        """It takes along a client that lives, if that has the same key."""
        with self._lock:
            self._clients.pop(self._key(one), None)

    def connected(self, one: Registered) -> str:
        """Why it is refused; empty if it is accepted, and asked from now on."""
        resource, path = one.request.resource_name, one.request.endpoint
        with self._lock:
            endpoints = self._endpoints.setdefault(resource, {})
            if self._minor >= 37 and path in endpoints:
                return f"device plugin already connected: {path}"
            endpoints[path] = one
            self.asked[resource] = self.healthy[resource] = one
            return ""

    def ended(self, one: Registered) -> None:
        """A stream has ended: its client is looked up by its key, and stopped if there is one."""
        with self._lock:
            client = self._clients.pop(self._key(one), None)
            if client is None:
                return
            resource, path = client.request.resource_name, client.request.endpoint
            endpoints = self._endpoints[resource]
            del endpoints[path]
            if self._minor < 37 or not endpoints:
                self.healthy.pop(resource, None)
            else:
                self.asked[resource] = next(iter(endpoints.values()))
        assert client.calls is not None
        client.calls.hang_up()


class ScriptedKubelet:
    """Serves kubelet.sock in a plugin directory, and a pod-resources socket where one is named.

    answers:     False leaves every Register without an answer.
    refuses:     a text with which every Register is refused.
    asks_back:   ask for the options and open ListAndWatch before Register is answered, as a kubelet does.
    goes_on:     while it is not set, Register waits; then it is done though its caller has given up.
    minor:       of Kubernetes 1.x, whose bookkeeping of clients it has.
    pod_resources: what List answers; a grpc.StatusCode refuses instead.
    """

    def __init__(self, kubelet_dir: Path, pod_resources_socket: Path | None = None) -> None:
        self.dir = kubelet_dir
        self.socket = kubelet_dir / KUBELET_SOCKET
        self.pod_resources_socket = pod_resources_socket
        self.answers = True
        self.refuses = ""
        self.asks_back = True
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.minor = 37
        self.table = _Table(self.minor)
        self.pod_resources: Any = held({})
        self.list_delay_s = 0.0
        self.list_calls = 0
        self.lists_in_flight = 0
        self.most_lists_in_flight = 0
        self.registered: list[Registered] = []
        self.leaked: list[PluginCalls] = []
        self._released = threading.Event()
        self._servers: list[Any] = []

    def start(self) -> None:
        self.dir.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._released = threading.Event()
        self.table = _Table(self.minor)
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
        for calls in self.leaked:
            calls.close()
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
        if not self.goes_on.is_set():
            self.registered.append(registered)
            self.goes_on.wait(60.0)
        if self.asks_back:
            self._connect(registered, context)
        if registered not in self.registered:
            self.registered.append(registered)
        return pb.Empty()

    def _connect(self, registered: Registered, context: Any) -> None:
        table, request = self.table, registered.request
        registered.calls = PluginCalls(self.dir / request.endpoint)
        table.connecting(registered)
        try:
            registered.options = registered.calls.options()
        except grpc.RpcError as error:
            table.failed(registered)
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error}")
        if refusal := table.connected(registered):
            table.failed(registered)
            self.leaked.append(registered.calls)
            context.abort(grpc.StatusCode.UNKNOWN, refusal)
        registered.watch = registered.calls.watch(then=lambda: table.ended(registered))
        wait_for(lambda: registered.watch and registered.watch.lists, what="the first list")

    def offered(self, resource: str) -> set[str]:
        """The ids that count as allocatable: of the last list that came, if a plugin counts as connected."""
        now = self.table.healthy.get(resource)
        if now is None or now.watch is None:
            return set()
        return {name for name, health in now.watch.health.items() if health == "Healthy"}

    def register_by_hand(self, endpoint: str, resource: str) -> str:
        """Register a socket that may be another's, as a tool might. Why it was refused; empty if not."""
        with grpc.insecure_channel(f"unix://{self.socket}") as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=pb.RegisterRequest.SerializeToString,
                response_deserializer=pb.Empty.FromString,
            )
            request = pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource)
            try:
                call(request, timeout=LIMIT_S)
            except grpc.RpcError as error:
                return str(error.details())
        return ""

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

"""The DRA driver for the kubelet: a gRPC server that calls a DraHandler, and its registration. It serves both
versions of the service, and of the health of its devices.

The kubelet watches a registry directory. It asks the socket that appears there what it is, and then calls the
socket that it is told. So the driver's socket is there first, and goes last.
"""

# ruff: noqa: N802  (gRPC's methods are called as the protocol calls them)
from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from grpclib.client import Channel
from grpclib.server import Stream

from partage.edges.host.own_task import bounded
from partage.edges.kubelet._generated import dra_health_v1_pb2 as health_v1
from partage.edges.kubelet._generated import dra_health_v1alpha1_pb2 as health_v1alpha1
from partage.edges.kubelet._generated import dra_v1_pb2 as v1
from partage.edges.kubelet._generated import dra_v1beta1_pb2 as v1beta1
from partage.edges.kubelet._generated import pluginregistration_pb2 as registration
from partage.edges.kubelet._generated.dra_health_v1_grpc import DRAResourceHealthBase as HealthV1
from partage.edges.kubelet._generated.dra_health_v1alpha1_grpc import DRAResourceHealthBase as HealthV1Alpha1
from partage.edges.kubelet._generated.dra_v1_grpc import DRAPluginBase as DraV1
from partage.edges.kubelet._generated.dra_v1beta1_grpc import DRAPluginBase as DraV1Beta1
from partage.edges.kubelet._generated.pluginregistration_grpc import RegistrationBase, RegistrationStub
from partage.edges.kubelet.connections import ClosingServer, request_of
from partage.edges.kubelet.port import DraHandler
from partage.edges.kubelet.registration import translate_errors
from partage.edges.kubelet.sockets import SocketIdentity, remove_socket, socket_identity
from partage.errors import ClusterError, Unreachable
from partage.model.claim import ClaimRef, DeviceCondition, PreparedDevice
from partage.model.paths import LONGEST_SOCKET_PATH, check_socket_path
from partage.model.share import LONGEST_REFUSAL
from partage.text import shortened
from partage.values import Frozen

log = logging.getLogger(__name__)

HEALTH_EVERY_S, HEALTH_TIMEOUT_S = 10.0, 30
"""How often the health of all devices is told though nothing changed, and after how long without it the
kubelet takes it for unknown, in seconds."""

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The kubelet takes the first that it knows."""


def dra_services(handler: DraHandler) -> list[Any]:
    """``SERVICES``, which call the handler."""
    return [_DraV1(handler), _DraV1Beta1(handler), _HealthV1(handler), _HealthV1Alpha1(handler)]


class _Service:
    """A service of either version. messages: its module of messages."""

    messages: Any

    def __init__(self, handler: DraHandler) -> None:
        self._handler = handler


class _Dra(_Service):
    """with_shares: ids of shares are told; else two of one device in one claim cannot be told apart."""

    with_shares: bool

    async def NodePrepareResources(self, stream: Stream[Any, Any]) -> None:
        answer = self.messages.NodePrepareResourcesResponse()
        claims = _refs((await request_of(stream)).claims)
        for uid, devices in (await _answered(self._handler.prepare, claims)).items():
            if isinstance(devices, str):
                answer.claims[uid].error = devices
                continue
            for device in devices:
                share = {"share_id": device.share_id} if self.with_shares else {}
                answer.claims[uid].devices.add(**_device(device), **share)
        await stream.send_message(answer)

    async def NodeUnprepareResources(self, stream: Stream[Any, Any]) -> None:
        answer = self.messages.NodeUnprepareResourcesResponse()
        claims = _refs((await request_of(stream)).claims)
        for uid, error in (await _answered(self._handler.unprepare, claims)).items():
            answer.claims[uid].error = error
        await stream.send_message(answer)


class _DraV1(_Dra, DraV1):
    messages, with_shares = v1, True


class _DraV1Beta1(_Dra, DraV1Beta1):
    messages, with_shares = v1beta1, False


class _Health(_Service):
    """Tells a stream the health of all devices, at each change and regularly."""

    async def NodeWatchResources(self, stream: Stream[Any, Any]) -> None:
        """Until cancelled."""
        await request_of(stream)
        while True:
            conditions = self._handler.conditions()
            answer = self.messages.NodeWatchResourcesResponse()
            for row in conditions.rows:
                device = self.messages.DeviceIdentifier(pool_name=row.pool, device_name=row.device)
                answer.devices.add(device=device, **_condition(row))
            await stream.send_message(answer)
            changed = asyncio.ensure_future(self._handler.changed(conditions.version))
            try:
                await asyncio.wait({changed}, timeout=HEALTH_EVERY_S)
            finally:
                changed.cancel()


class _HealthV1(_Health, HealthV1):
    messages = health_v1


class _HealthV1Alpha1(_Health, HealthV1Alpha1):
    messages = health_v1alpha1


def _refs(claims: Iterable[Any]) -> list[ClaimRef]:
    return [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims]


def _device(device: PreparedDevice) -> dict[str, Any]:
    return {
        "request_names": [device.request],
        "pool_name": device.pool,
        "device_name": device.device,
        "cdi_device_ids": device.cdi_devices,
    }


def _condition(row: DeviceCondition) -> dict[str, Any]:
    healthy, unhealthy = health_v1.HealthStatus.HEALTHY, health_v1.HealthStatus.UNHEALTHY
    return {
        "health": healthy if row.healthy else unhealthy,
        "last_updated_time": int(time.time()),
        "health_check_timeout_seconds": HEALTH_TIMEOUT_S,
        "message": shortened(row.message, LONGEST_REFUSAL),
    }


async def _answered(
    ask: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, Any]]], claims: Sequence[ClaimRef]
) -> dict[str, Any]:
    """An answer for each claim. A fault of ours is one for each, and no error of the call: that would be the
    answer for the claims of other drivers' devices, too."""
    try:
        said = await ask(claims)
    except Exception as error:  # the server must survive a bug in one answer
        log.exception("a call for claims failed")
        said = dict.fromkeys(
            (claim.uid for claim in claims), shortened(f"{type(error).__name__}: {error}", LONGEST_REFUSAL)
        )
    return {claim.uid: said.get(claim.uid, "the driver has no answer for this claim") for claim in claims}


LOOK_S = 5.0
"""How often it is looked whether the sockets are still there, in seconds."""

_INFO_S = 1.0
_SHORTEN = "choose a shorter --kubelet-dir"


class DraSockets(Frozen):
    """The sockets of a driver. pod_uid: of the pod in which it runs; empty: in none."""

    plugins: Path
    registry: Path
    driver: str
    pod_uid: str = ""

    @property
    def directory(self) -> Path:
        """The driver's own directory."""
        return self.plugins / self.driver

    @property
    def service(self) -> Path:
        """The socket that serves. Raises InputError for a path that is too long."""
        return self._path(self.directory, "dra", "")

    @property
    def registration(self) -> Path:
        """The socket in the registry. Raises InputError for a path that is too long."""
        return self._path(self.registry, self.driver, "-reg")

    def _path(self, directory: Path, stem: str, ending: str) -> Path:
        """Two agents of a rolling update must not have one name. A UID for which there is no room is cut."""
        path = directory / f"{'-'.join(filter(None, (stem, self.pod_uid)))}{ending}.sock"
        if len(str(path).encode()) > LONGEST_SOCKET_PATH:
            digest = sha256(self.pod_uid.encode()).hexdigest()[:8]
            path = directory / f"{stem}-{digest}{ending}.sock"
        check_socket_path(path, _SHORTEN)
        return path


class DraServer:
    """Serves a driver on its sockets, from ``run`` until that is cancelled.

    registered: the kubelet has accepted it. trouble: why it is not served or not accepted; empty: it is, or
    nobody has asked yet.
    """

    def __init__(self, handler: DraHandler, sockets: DraSockets, changed: Callable[[], None]) -> None:
        """changed: called when ``registered`` or ``trouble`` is another one. Raises InputError for a path
        that is too long."""
        self._sockets, self._changed = sockets, changed
        self._paths = _Paths(sockets.service, sockets.registration)
        self._services = dra_services(handler)
        self._servers: list[_ServedSocket] = []
        self.registered = False
        self.trouble = ""

    async def run(self) -> None:
        """Serve, and serve again where a socket is gone."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(LOOK_S)
        finally:
            await self._stop()

    async def _look(self) -> None:
        if self._servers and all(served.is_there for served in self._servers):
            return
        await self._stop()
        try:
            if other := await self._other_driver():
                self._say(registered=False, trouble=other)
                return
            self._sockets.directory.mkdir(parents=True, exist_ok=True)
            info = registration.PluginInfo(
                type="DRAPlugin",
                name=self._sockets.driver,
                endpoint=str(self._paths.service),
                supported_versions=SERVICES,
            )
            await self._serve(self._paths.service, self._services)
            await self._serve(self._paths.registration, [_Registration(info, self._said)])
        except OSError as error:
            await self._stop()
            self._say(
                registered=False,
                trouble=f"cannot serve {error.filename}: {error.strerror}",
            )

    async def _serve(self, path: Path, services: list[Any]) -> None:
        logging.getLogger("grpclib.server").setLevel(logging.WARNING)
        server = ClosingServer(services)
        try:
            _remove(path)
            await server.serve_at(path)
        except OSError as error:
            why = error.strerror or str(error)
            raise OSError(error.errno, why, str(path)) from error  # asyncio does not say which
        self._servers.append(_ServedSocket(path, socket_identity(path), server))

    async def _stop(self) -> None:
        for served in reversed(self._servers):
            remove_socket(served.path, served.identity)
        servers, self._servers = self._servers, []
        for served in reversed(servers):
            await served.server.stop()

    async def _other_driver(self) -> str:
        """Who else has this name, a sentence; empty: nobody. Sockets of ours that nobody serves are removed:
        they are of an agent that was killed."""
        for path in _sockets_in(self._sockets.registry):
            if path == self._paths.registration:
                continue
            try:
                info = await plugin_info(path)
            except Unreachable as error:
                if not path.name.startswith(f"{self._sockets.driver}-"):
                    continue
                if not isinstance(
                    error.__cause__, (ConnectionRefusedError, FileNotFoundError)
                ):  # somebody is there
                    return f"another driver may be registered as {self._sockets.driver}: {error}"
                _remove(path)
                continue
            except ClusterError:
                continue
            if info.name == self._sockets.driver and info.type == "DRAPlugin":
                return f"another driver is registered as {info.name}, on {path}"
        return ""

    def _said(self, status: registration.RegistrationStatus) -> None:
        trouble = "" if status.plugin_registered else f"the kubelet does not accept it: {status.error}"
        self._say(registered=status.plugin_registered, trouble=shortened(trouble, LONGEST_REFUSAL))

    def _say(self, *, registered: bool, trouble: str) -> None:
        if (registered, trouble) == (self.registered, self.trouble):
            return
        self.registered, self.trouble = registered, trouble
        if trouble:
            log.warning("claims are not served", extra={"reason": trouble})
        else:
            log.info("claims are served", extra={"driver": self._sockets.driver})
        self._changed()


async def plugin_info(path: Path) -> registration.PluginInfo:
    """What a plugin in the registry says that it is. Raises Unreachable or Rejected."""
    with translate_errors(f"the plugin at {path}"):
        return await bounded(_ask_info(path), _INFO_S)


async def _ask_info(path: Path) -> registration.PluginInfo:
    async with Channel(path=str(path)) as channel:
        return await RegistrationStub(channel).GetInfo(registration.InfoRequest())


class _Paths(NamedTuple):
    service: Path
    registration: Path


class _ServedSocket(NamedTuple):
    path: Path
    identity: SocketIdentity | None
    server: ClosingServer

    @property
    def is_there(self) -> bool:
        """Whether the file is still that of this server: the kubelet finds nobody at another one."""
        found = socket_identity(self.path)
        return found is not None and self.identity is not None and found.inode == self.identity.inode


def _remove(path: Path) -> None:
    """Of an agent that was killed."""
    path.unlink(missing_ok=True)


def _sockets_in(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".sock")
    except OSError:
        return []


class _Registration(RegistrationBase):
    def __init__(
        self, info: registration.PluginInfo, said: Callable[[registration.RegistrationStatus], None]
    ) -> None:
        self._info, self._said = info, said

    async def GetInfo(self, stream: Stream[registration.InfoRequest, registration.PluginInfo]) -> None:
        await request_of(stream)
        await stream.send_message(self._info)

    async def NotifyRegistrationStatus(
        self, stream: Stream[registration.RegistrationStatus, registration.RegistrationStatusResponse]
    ) -> None:
        status = await request_of(stream)
        self._said(status)
        await stream.send_message(registration.RegistrationStatusResponse())

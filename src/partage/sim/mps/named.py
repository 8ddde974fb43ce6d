"""What a control daemon of version 3 knows and decides: servers with names, namespaces in them.

Sources: NVIDIA's MPS guide, release 615, and what NVIDIA's Dynamo project measured on driver 615.71: a named
namespace inherits nothing from its server, one without limits is unlimited, and a server for a GPU that is
not there is accepted and ends. What is ours, for want of a source: that servers on one GPU do not share a
fault, and that quitting waits for nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from partage.sim.mps.limits import ALL_THREADS, DaemonLimits, parse_value
from partage.sim.mps.state import (
    CONNECTION_FAILED,
    NOT_PERMITTED,
    NOT_READY,
    Log,
    LogOfServer,
    MpsState,
    Open,
    Shut,
    SimulatedClient,
    SimulatedServer,
    StartServer,
    Status,
    StopServer,
)

DEFAULT = "default"
SCHEMA = "1.0"
_NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)


class Wrong(Exception):
    """A command or a file cannot be obeyed. In what words a real daemon says so is not known."""


@dataclass(slots=True, eq=False)
class NamedServer(SimulatedServer):
    """namespaces: name to limits; an ordinal in them counts what the server sees."""

    name: str = ""
    namespaces: dict[str, DaemonLimits] = field(default_factory=dict)


class NamedState(MpsState):
    """One daemon that speaks version 3."""

    # --- what it is told --------------------------------------------------------------------------

    def create_server(self, name: str, uid: int | None = None, allowed: str | None = None) -> None:
        """Accepted whatever the devices are; a server that sees none ends at its start. Raises Wrong."""
        owner = self._uid if uid is None else uid
        if self._multi_user and owner != self._uid:
            raise Wrong("in multiuser mode the daemon's own user has all servers")
        if self._uid not in (0, owner):
            raise Wrong(f"only root can start a server for user {owner}")
        if self.named(name) is not None:
            raise Wrong(f"there is a server {name!r}")
        devices = self.defaults.devices
        if allowed is not None:
            numbered = {str(number): device for number, device in enumerate(devices)}
            wanted = [numbered.get(word, word) for word in allowed.split(",")]
            devices = tuple(device for device in devices if device in wanted)
        server = NamedServer(0, owner, DaemonLimits(devices), name=_checked(name))
        self.servers.append(server)
        self.effects += [StartServer(owner, name, len(devices)), Open((name, ""))]
        self._add(server, DEFAULT)

    def delete_server(self, name: str, *, force: bool) -> None:
        """Raises Wrong where clients are there, unless by force."""
        server = self._server_named(name)
        if server.clients and not force:
            raise Wrong(f"server {name!r} has clients")
        if server.pid:
            self.effects.append(StopServer(server.pid))

    def create_namespace(self, server: str, name: str) -> None:
        """Without any limit. Raises Wrong."""
        of = self._server_named(server)
        if name in of.namespaces:
            raise Wrong(f"there is a namespace {name!r} in {server!r}")
        self._add(of, _checked(name))

    def set_namespace(self, server: str, name: str, memory: str | None, threads: str | None) -> None:
        """For clients that come later. Raises Wrong."""
        of = self._server_named(server)
        if name not in of.namespaces:
            raise Wrong(f"there is no namespace {name!r} in {server!r}")
        limits = of.namespaces[name]
        if memory is not None:
            if parse_value(memory) is None:
                raise Wrong(f"{memory!r} is no amount of memory")
            limits = limits.with_memory("0", memory)
        if threads is not None:
            if not threads.isdecimal() or not 1 <= int(threads) <= ALL_THREADS:
                raise Wrong(f"{threads!r} is no percentage")
            limits = limits.with_threads(threads)
        of.namespaces[name] = of.namespaces[name] if self.node.deaf_to_limits else limits

    def apply(self, content: Mapping[str, Any]) -> None:
        """A configuration file, read once at the start. Raises Wrong for what may not stand in one."""
        table = _table(content, "schema_version", "servers")
        if table.get("schema_version") != SCHEMA:
            raise Wrong(f"schema_version has to be {SCHEMA!r}")
        for name, server in table.get("servers", {}).items():
            known = _table(server, *_LIMITS, "allowed_devices", "uid", "namespaces")
            self.create_server(name, known.get("uid"), known.get("allowed_devices"))
            self._apply_limits(name, DEFAULT, known)
            for namespace, limits in known.get("namespaces", {}).items():
                if namespace != DEFAULT:
                    self.create_namespace(name, namespace)
                self._apply_limits(name, namespace, _table(limits, *_LIMITS))

    def _apply_limits(self, server: str, name: str, limits: Mapping[str, Any]) -> None:
        self.set_namespace(server, name, *(limits.get(key) for key in _LIMITS))

    def end_client(self, pid: int) -> None:
        """Raises Wrong where there is no such client."""
        if not any(self.terminate(server.pid, pid) for server in self.servers):
            raise Wrong(f"there is no client {pid}")

    # --- what happens -----------------------------------------------------------------------------

    def arrive(self, client: SimulatedClient) -> None:
        """A client comes through a namespace's socket, a server's, or the daemon's own.

        There it gets its user's server, which is made for it, and limits nothing.
        """
        if self.closing:
            return self._tell(client, CONNECTION_FAILED)
        if not client.route[0]:
            client.route = (f"uid_{self._user(client)}", DEFAULT)
            if self.named(client.route[0]) is None:
                self.create_server(client.route[0], self._user(client))
        server = self.named(client.route[0])
        if server is None:
            return self._tell(client, CONNECTION_FAILED)
        if server.uid != self._user(client):
            return self._tell(client, NOT_PERMITTED)
        self._pending.append(client)
        return self._next()

    def started(self, pid: int, uid: int, name: str = "") -> None:
        server = self._server_named(name)
        server.pid = pid
        self.effects.append(Log(f"Starting new server {name} {pid} for user {uid}"))

    def ended(self, pid: int, code: int) -> None:
        for server in [one for one in self.servers if isinstance(one, NamedServer) and one.pid == pid]:
            if server.status is Status.INITIALIZING:
                self.effects.append(LogOfServer(server.name, "no CUDA-capable device is detected"))
            self.servers.remove(server)
            self.effects.append(Log(f"Server {server.name} {pid} exited with status {code}"))
            self.effects += [Shut((server.name, name)) for name in server.namespaces]
            self.effects.append(Shut((server.name, "")))
            for client in server.clients:
                client.lost = client.lost or CONNECTION_FAILED
        self._next()

    # --- rules ------------------------------------------------------------------------------------

    def named(self, name: str) -> NamedServer | None:
        """The server of this name."""
        return next((one for one in self.servers if isinstance(one, NamedServer) and one.name == name), None)

    def _server_named(self, name: str) -> NamedServer:
        server = self.named(name)
        if server is None:
            raise Wrong(f"there is no server {name!r}")
        return server

    def _add(self, server: NamedServer, name: str) -> None:
        server.namespaces[name] = DaemonLimits(server.limits.devices)
        self.effects.append(Open((server.name, name)))

    def _next(self) -> None:
        """Let in whose server is ready. Servers of several users work side by side."""
        for client in list(self._pending):
            server = self.named(client.route[0])
            if server is not None and server.status is Status.INITIALIZING:
                continue
            self._pending.remove(client)
            if server is None:
                self._tell(client, CONNECTION_FAILED)
            elif server.status is Status.FAULT:
                self._tell(client, NOT_READY)
            else:
                self._admit(client, server)

    def _limits_for(self, client: SimulatedClient, server: SimulatedServer) -> DaemonLimits:
        assert isinstance(server, NamedServer)
        return server.namespaces[client.route[1] or DEFAULT]

    def _threads_for(self, limits: DaemonLimits, own: DaemonLimits) -> float:
        """A namespace's percentage overrides the client's variable (guide, appendix on the environment)."""
        return limits.threads if limits.threads != ALL_THREADS else own.threads


_LIMITS = ("pinned_memory_limit", "active_thread_percentage")


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Wrong(f"{name!r} is no name: lower-case letters, digits and underscores, at most 64")
    return name


def _table(content: object, *keys: str) -> Mapping[str, Any]:
    """A table in which nothing but these keys stands: any other one is an error, says the guide."""
    if not isinstance(content, dict) or not content.keys() <= set(keys):
        raise Wrong(f"a table may have {', '.join(keys)}")
    return content

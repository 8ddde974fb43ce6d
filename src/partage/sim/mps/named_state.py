"""What a control daemon of version 3 knows and decides: named servers, and namespaces in them.

Sources: NVIDIA's MPS guide, release 615, and what NVIDIA's Dynamo project measured on driver 615.71: a named
namespace inherits nothing from its server, one without limits is unlimited, and a server for a GPU that does
not exist is accepted and ends. Two things are assumed, because no source has them: servers on one GPU do not
share a fault, and ``quit`` does not wait for clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import field

from partage.model.mps import DEFAULT_NAMESPACE, ServerStatus, is_mps_name
from partage.sim.mps.clients import (
    CONNECTION_FAILED,
    NOT_PERMITTED,
    NOT_READY,
    CloseSocket,
    OpenSocket,
    SimulatedClient,
    SimulatedServer,
    StartServer,
    StopServer,
    WriteLog,
    WriteServerLog,
)
from partage.sim.mps.limits import ALL_THREADS, DaemonLimits, parse_value
from partage.sim.mps.state import MpsControlState

SCHEMA = "1.0"


class CommandError(Exception):
    """A command or a file is invalid. The words of a real daemon for this are not known."""


class NamedServer(SimulatedServer, eq=False):
    """A server with a name. namespaces: name to limits; an ordinal counts what the server sees."""

    name: str = ""
    namespaces: dict[str, DaemonLimits] = field(default_factory=dict)


class NamedState(MpsControlState):
    """One daemon with version 3 of the control interface."""

    # --- commands ---------------------------------------------------------------------------------

    def create_server(self, name: str, uid: int | None = None, allowed: str | None = None) -> None:
        """Any devices are accepted; a server that sees none ends at its start. Raises CommandError."""
        owner = self._uid if uid is None else uid
        if self._multi_user and owner != self._uid:
            raise CommandError("in multiuser mode the daemon's own user has all servers")
        if self._uid not in (0, owner):
            raise CommandError(f"only root can start a server for user {owner}")
        if self.named(name) is not None:
            raise CommandError(f"there is a server {name!r}")
        devices = self.defaults.devices
        if allowed is not None:
            numbered = {str(number): device for number, device in enumerate(devices)}
            wanted = [numbered.get(word, word) for word in allowed.split(",")]
            devices = tuple(device for device in devices if device in wanted)
        server = NamedServer(0, owner, DaemonLimits(devices), name=_checked(name))
        self.servers.append(server)
        self.actions += [StartServer(owner, name, len(devices)), OpenSocket((name, ""))]
        self._add(server, DEFAULT_NAMESPACE)

    def delete_server(self, name: str, *, force: bool) -> None:
        """Raises CommandError where it has clients, except with ``force``."""
        server = self._server_named(name)
        if server.clients and not force:
            raise CommandError(f"server {name!r} has clients")
        if server.pid:
            self.actions.append(StopServer(server.pid))

    def create_namespace(self, server: str, name: str) -> None:
        """A namespace without limits. Raises CommandError."""
        of = self._server_named(server)
        if name in of.namespaces:
            raise CommandError(f"there is a namespace {name!r} in {server!r}")
        self._add(of, _checked(name))

    def set_namespace(self, server: str, name: str, memory: str | None, threads: str | None) -> None:
        """Set the limits of clients that connect from now on. Raises CommandError."""
        of = self._server_named(server)
        if name not in of.namespaces:
            raise CommandError(f"there is no namespace {name!r} in {server!r}")
        limits = of.namespaces[name]
        if memory is not None:
            if parse_value(memory) is None:
                raise CommandError(f"{memory!r} is no amount of memory")
            limits = limits.with_memory("0", memory)
        if threads is not None:
            if not threads.isdecimal() or not 1 <= int(threads) <= ALL_THREADS:
                raise CommandError(f"{threads!r} is no percentage")
            limits = limits.with_threads(threads)
        of.namespaces[name] = of.namespaces[name] if self.node.ignores_limits else limits

    def apply(self, content: Mapping[str, Any]) -> None:
        """Apply a configuration file; done once, at the start. Raises CommandError."""
        table = _table(content, "schema_version", "servers")
        if table.get("schema_version") != SCHEMA:
            raise CommandError(f"schema_version has to be {SCHEMA!r}")
        for name, server in table.get("servers", {}).items():
            known = _table(server, *_LIMITS, "allowed_devices", "uid", "namespaces")
            self.create_server(name, known.get("uid"), known.get("allowed_devices"))
            self._apply_limits(name, DEFAULT_NAMESPACE, known)
            for namespace, limits in known.get("namespaces", {}).items():
                if namespace != DEFAULT_NAMESPACE:
                    self.create_namespace(name, namespace)
                self._apply_limits(name, namespace, _table(limits, *_LIMITS))

    def _apply_limits(self, server: str, name: str, limits: Mapping[str, Any]) -> None:
        self.set_namespace(server, name, *(limits.get(key) for key in _LIMITS))

    def end_client(self, pid: int) -> None:
        """Raises CommandError where there is no such client."""
        if not any(self.terminate(server.pid, pid) for server in self.servers):
            raise CommandError(f"there is no client {pid}")

    # --- what happened ----------------------------------------------------------------------------

    def connect(self, client: SimulatedClient) -> None:
        """A client connects to the socket of a namespace, of a server, or of the daemon.

        At the daemon's socket it gets the server of its user, which is created for it and has no limits.
        """
        if self.closing:
            return self._answer(client, CONNECTION_FAILED)
        if not client.route[0]:
            client.route = (f"uid_{self._user(client)}", DEFAULT_NAMESPACE)
            if self.named(client.route[0]) is None:
                self.create_server(client.route[0], self._user(client))
        server = self.named(client.route[0])
        if server is None:
            return self._answer(client, CONNECTION_FAILED)
        if server.uid != self._user(client):
            return self._answer(client, NOT_PERMITTED)
        self._pending.append(client)
        return self._admit_pending()

    def started(self, pid: int, uid: int, name: str = "") -> None:
        server = self._server_named(name)
        server.pid = pid
        self.actions.append(WriteLog(f"Starting new server {name} {pid} for user {uid}"))

    def not_started(self, uid: int, name: str, reason: str) -> None:
        del uid
        self.actions.append(WriteLog(f"Failed to start server: {reason}"))
        self._gone(self._server_named(name))
        self._admit_pending()

    def ended(self, pid: int, code: int) -> None:
        for server in [
            simulated_server
            for simulated_server in self.servers
            if isinstance(simulated_server, NamedServer) and simulated_server.pid == pid
        ]:
            if server.status is ServerStatus.INITIALIZING:
                self.actions.append(WriteServerLog(server.name, "no CUDA-capable device is detected"))
            self.actions.append(WriteLog(f"Server {server.name} {pid} exited with status {code}"))
            self._gone(server)
        self._admit_pending()

    def _gone(self, server: NamedServer) -> None:
        """A server that has ended, or never ran: its sockets go with it, its clients have lost all."""
        self.servers.remove(server)
        self.actions += [CloseSocket((server.name, name)) for name in server.namespaces]
        self.actions.append(CloseSocket((server.name, "")))
        for client in server.clients:
            client.error = client.error or CONNECTION_FAILED

    # --- rules ------------------------------------------------------------------------------------

    def named(self, name: str) -> NamedServer | None:
        """The server of this name."""
        return next(
            (server for server in self.servers if isinstance(server, NamedServer) and server.name == name),
            None,
        )

    def _server_named(self, name: str) -> NamedServer:
        server = self.named(name)
        if server is None:
            raise CommandError(f"there is no server {name!r}")
        return server

    def _add(self, server: NamedServer, name: str) -> None:
        server.namespaces[name] = DaemonLimits(server.limits.devices)
        self.actions.append(OpenSocket((server.name, name)))

    def _admit_pending(self) -> None:
        """Admit the clients whose server is ready. Servers of several users run at the same time."""
        for client in list(self._pending):
            server = self.named(client.route[0])
            if server is not None and server.status is ServerStatus.INITIALIZING:
                continue
            self._pending.remove(client)
            if server is None:
                self._answer(client, CONNECTION_FAILED)
            elif server.status is ServerStatus.FAULT:
                self._answer(client, NOT_READY)
            else:
                self._admit(client, server)

    def _limits_for(self, client: SimulatedClient, server: SimulatedServer) -> DaemonLimits:
        assert isinstance(server, NamedServer)
        return server.namespaces[client.route[1] or DEFAULT_NAMESPACE]

    def _threads_for(self, limits: DaemonLimits, own: DaemonLimits) -> float:
        """A namespace's percentage overrides the client's variable (guide, appendix on the environment)."""
        return limits.threads if limits.threads != ALL_THREADS else own.threads


_LIMITS = ("pinned_memory_limit", "active_thread_percentage")


def _checked(name: str) -> str:
    if not is_mps_name(name):
        raise CommandError(f"{name!r} is no name: lower-case letters, digits and underscores, at most 64")
    return name


def _table(content: object, *keys: str) -> Mapping[str, Any]:
    """A table that has only these keys: any other key is an error, as the guide says."""
    if not isinstance(content, dict) or not content.keys() <= set(keys):
        raise CommandError(f"a table may have {', '.join(keys)}")
    return content

"""What an MPS control daemon knows and decides, without sockets and processes.

The state takes what happens (a client arrives, a server is ready, somebody faults) and leaves ``effects``:
what the daemon around it has to do now. Sources: NVIDIA's MPS guide (queue by user, error containment),
and control logs that users have shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from partage.sim.mps.limits import DaemonLimits, lowered
from partage.sim.mps.node import MpsNode

# What a client's CUDA calls answer. Names: cuda.h.
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
NO_DEVICE = "CUDA_ERROR_NO_DEVICE"
LAUNCH_FAILED = "CUDA_ERROR_LAUNCH_FAILED"
CONNECTION_FAILED = "CUDA_ERROR_MPS_CONNECTION_FAILED"
NOT_READY = "CUDA_ERROR_MPS_SERVER_NOT_READY"
TOO_MANY = "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
TERMINATED = "CUDA_ERROR_MPS_CLIENT_TERMINATED"
NOT_PERMITTED = "CUDA_ERROR_NOT_PERMITTED"


class Status(StrEnum):
    """Of a server, in the words of ``get_server_status``."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"


@dataclass(slots=True, eq=False)
class SimulatedClient:
    """One process and its connection. env: variables it brought. lost: what its calls answer from then on.

    route: server and namespace through whose socket it came, as far as these have names.
    """

    pid: int
    uid: int
    namespace: int = 0
    command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    used_bytes: int = 0
    limit_bytes: int | None = None
    threads: float = 100.0
    lost: str = ""
    route: tuple[str, str] = ("", "")


@dataclass(slots=True, eq=False)
class SimulatedServer:
    """limits: those of its start; clients that come later may find others (``set_...`` with its pid)."""

    pid: int
    uid: int
    limits: DaemonLimits
    status: Status = Status.INITIALIZING
    clients: list[SimulatedClient] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tell:
    """Answer the request of a client that waits to be let in; error: empty where it is."""

    client: SimulatedClient
    error: str


@dataclass(frozen=True, slots=True)
class StartServer:
    """Run a server for a user. devices: how many it sees."""

    uid: int
    name: str = ""
    devices: int = 1


@dataclass(frozen=True, slots=True)
class StopServer:
    """End a server."""

    pid: int


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line."""

    text: str


@dataclass(frozen=True, slots=True)
class LogOfServer:
    """Write a line into the log of a named server."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Open:
    """Take connections in a directory below the pipe directory."""

    route: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Shut:
    """Take none there any more, and remove the directory."""

    route: tuple[str, str]


Effect = Tell | StartServer | StopServer | Log | LogOfServer | Open | Shut


class MpsState:
    """One daemon. uid: its own; only root can start servers for others."""

    def __init__(self, node: MpsNode, devices: tuple[str, ...], *, uid: int, multi_user: bool) -> None:
        self.node = node
        self.defaults = DaemonLimits(devices)
        self.servers: list[SimulatedServer] = []
        self.effects: list[Effect] = []
        self.closing = False
        self._uid = uid
        self._multi_user = multi_user
        self._pending: list[SimulatedClient] = []
        self._starting: int | None = None

    # --- what happens -------------------------------------------------------------------------

    def arrive(self, client: SimulatedClient) -> None:
        """A client asks to be let in; it is told so at once or when its user's turn comes."""
        if self.closing:
            return self._tell(client, CONNECTION_FAILED)
        if self._uid not in (0, client.uid) and not self._multi_user:
            return self._tell(client, NOT_PERMITTED)
        server = self._server_of(client)
        if server is not None and server.status is Status.FAULT:
            return self._tell(client, NOT_READY)
        if server is not None and server.status is Status.ACTIVE and not self._pending:
            return self._admit(client, server)
        newcomer = f"NEW CLIENT {client.pid} from user {client.uid}"
        self.effects.append(Log(f"{newcomer}: Server is not ready, push client to pending list"))
        self._pending.append(client)
        return self._next()

    def start_server(self, uid: int) -> None:
        """Before there is a client. Nothing where a server is there or on its way."""
        if not self.servers and self._starting is None:
            self._start(uid)

    def started(self, pid: int, uid: int, name: str = "") -> None:
        """The process of a server exists. name: that it was to be started with."""
        del name
        self._starting = None
        self.servers.append(SimulatedServer(pid, uid, self.defaults))
        self.effects.append(Log(f"Starting new server {pid} for user {uid}"))

    def ready(self, pid: int) -> None:
        """A server has its contexts."""
        for server in self._with_pid(pid):
            server.status = Status.ACTIVE
            self.effects.append(Log(f"NEW SERVER {pid}: Ready"))
        self._next()

    def ended(self, pid: int, code: int) -> None:
        """A server's process has ended: all that it had is lost.

        A real daemon starts a server again and again that fails at its start; this one tells the clients.
        """
        for server in self._with_pid(pid):
            self.servers.remove(server)
            if server.status is Status.INITIALIZING:
                self.effects.append(Log("Server encountered a fatal exception. Shutting down"))
            self.effects.append(Log(f"Server {pid} exited with status {code}"))
            for client in server.clients:
                client.lost = client.lost or CONNECTION_FAILED
            if server.status is Status.INITIALIZING:
                failed = [client for client in self._pending if self._user(client) == server.uid]
                for client in failed:
                    self._pending.remove(client)
                    self._tell(client, CONNECTION_FAILED)
        self._next()

    def leave(self, client: SimulatedClient) -> None:
        """A client's process has ended, or closed its connection."""
        if client in self._pending:
            self._pending.remove(client)
        for server in self.servers:
            if client in server.clients:
                server.clients.remove(client)
                self._recover(server)
        self._next()

    def fault(self, client: SimulatedClient) -> None:
        """A fatal fault: every client of the server has it, and none learns whose it was."""
        for server in self.servers:
            if client in server.clients:
                server.status = Status.FAULT
                for victim in server.clients:
                    victim.lost = victim.lost or LAUNCH_FAILED

    def terminate(self, server_pid: int, client_pid: int) -> bool:
        """Take a client's contexts away; whether there was one."""
        for server in self._with_pid(server_pid):
            for client in [one for one in server.clients if one.pid == client_pid]:
                client.lost, client.used_bytes = TERMINATED, 0
                server.clients.remove(client)
                self._recover(server)
                self._next()
                return True
        return False

    def allocate(self, client: SimulatedClient, amount_bytes: int) -> str:
        """What the allocation answers; empty: it has the memory."""
        if client.lost:
            return client.lost
        device = self.defaults.devices[0]
        used = sum(one.used_bytes for server in self.servers for one in server.clients)
        over = client.limit_bytes is not None and client.used_bytes + amount_bytes > client.limit_bytes
        if over or used + amount_bytes > self.node.gpus[device]:
            return OUT_OF_MEMORY
        client.used_bytes += amount_bytes
        return ""

    def close(self) -> None:
        """Take no more clients."""
        self.closing = True
        for client in self._pending:
            self._tell(client, CONNECTION_FAILED)
        self._pending.clear()

    @property
    def idle(self) -> bool:
        return not any(server.clients for server in self.servers)

    def server(self, pid: int) -> SimulatedServer | None:
        """The server with this pid."""
        return next(iter(self._with_pid(pid)), None)

    # --- rules --------------------------------------------------------------------------------

    def _user(self, client: SimulatedClient) -> int:
        """Whose server serves a client: with one server for all, everybody appears as the daemon's user."""
        return self._uid if self._multi_user else client.uid

    def _server_of(self, client: SimulatedClient) -> SimulatedServer | None:
        return next((server for server in self.servers if server.uid == self._user(client)), None)

    def _next(self) -> None:
        """Let in who can be. One user at a time: another's server has to be idle, and is ended then."""
        while self._pending and self._starting is None:
            user = self._user(self._pending[0])
            if not self.servers:
                return self._start(user)
            server = self.servers[0]
            if server.uid != user:
                if not server.clients and server.status is Status.ACTIVE:
                    self.effects.append(StopServer(server.pid))
                return None
            if server.status is Status.INITIALIZING:
                return None
            client = self._pending.pop(0)
            if server.status is Status.FAULT:
                self._tell(client, NOT_READY)
            else:
                self._admit(client, server)
        return None

    def _start(self, uid: int) -> None:
        self._starting = uid
        self.effects.append(StartServer(uid, devices=len(self.defaults.devices)))

    def _admit(self, client: SimulatedClient, server: SimulatedServer) -> None:
        devices = self.defaults.devices
        visible = self._seen_by(client)
        if not visible:
            return self._tell(client, NO_DEVICE)
        if len(server.clients) >= self.node.clients:
            return self._tell(client, TOO_MANY)
        device = devices[0]
        variable = client.env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
        limits = self._limits_for(client, server)
        client.limit_bytes = lowered(limits.in_force(device), variable, visible, device)
        own = DaemonLimits(devices).with_threads(client.env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""))
        client.threads = self._threads_for(limits, own)
        server.clients.append(client)
        return self._tell(client, "")

    def _limits_for(self, client: SimulatedClient, server: SimulatedServer) -> DaemonLimits:
        del client
        return server.limits

    def _threads_for(self, limits: DaemonLimits, own: DaemonLimits) -> float:
        """A client's own variable lowers, and never raises."""
        return min(limits.threads, own.threads)

    def _seen_by(self, client: SimulatedClient) -> tuple[str, ...]:
        """A client counts among what the daemon sees: its ordinals are the daemon's, not the node's."""
        devices = self.defaults.devices
        seen = MpsNode(dict.fromkeys(devices, 0))
        return seen.visible(client.env.get("CUDA_VISIBLE_DEVICES"))

    def _recover(self, server: SimulatedServer) -> None:
        """After a fault, contexts are made anew once all that were hit have gone."""
        if server.status is Status.FAULT and not server.clients:
            server.status = Status.ACTIVE

    def _tell(self, client: SimulatedClient, error: str) -> None:
        self.effects.append(Tell(client, error))

    def _with_pid(self, pid: int) -> Iterable[SimulatedServer]:
        return [server for server in self.servers if server.pid == pid]

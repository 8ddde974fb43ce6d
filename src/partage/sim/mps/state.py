"""What an MPS control daemon knows and decides, without sockets and processes.

The state is told what happened (a client connects, a server is ready, a client has a fault) and leaves
``actions``: what the daemon's process has to do next. Sources: NVIDIA's MPS guide (queue by user, error
containment), and control logs that users have shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from partage.model.mps import ServerStatus
from partage.sim.mps.clients import (
    CONNECTION_FAILED,
    ILLEGAL_ADDRESS,
    LAUNCH_FAILED,
    NO_DEVICE,
    NOT_PERMITTED,
    NOT_READY,
    OUT_OF_MEMORY,
    TERMINATED,
    TOO_MANY,
    Action,
    AnswerClient,
    SimulatedClient,
    SimulatedServer,
    StartServer,
    StopServer,
    WriteLog,
)
from partage.sim.mps.limits import DaemonLimits, client_limit
from partage.sim.mps.node import MpsNode


class MpsControlState:
    """One daemon. uid: its own user; only root can start servers for other users."""

    def __init__(self, node: MpsNode, devices: tuple[str, ...], *, uid: int, multi_user: bool) -> None:
        self.node = node
        self.defaults = DaemonLimits(devices)
        self.servers: list[SimulatedServer] = []
        self.actions: list[Action] = []
        self.closing = False
        self._uid = uid
        self._multi_user = multi_user
        self._pending: list[SimulatedClient] = []
        self._starting: int | None = None

    def is_root(self, uid: int) -> bool:
        """Whether this user may give every command."""
        return uid in (0, self._uid)

    # --- what happened ------------------------------------------------------------------------

    def connect(self, client: SimulatedClient) -> None:
        """A client asks to be admitted. It is answered now, or later when its user is served."""
        if self.closing:
            return self._answer(client, CONNECTION_FAILED)
        if self._uid not in (0, client.uid) and not self._multi_user:
            return self._answer(client, NOT_PERMITTED)
        server = self._server_of(client)
        if server is not None and server.status is ServerStatus.FAULT:
            return self._answer(client, NOT_READY)
        if server is not None and server.status is ServerStatus.ACTIVE and not self._pending:
            return self._admit(client, server)
        new = f"NEW CLIENT {client.pid} from user {client.uid}"
        self.actions.append(WriteLog(f"{new}: Server is not ready, push client to pending list"))
        self._pending.append(client)
        return self._admit_pending()

    def start_server(self, uid: int) -> None:
        """Start a server before there is a client. Nothing happens if one runs or is starting."""
        if not self.servers and self._starting is None:
            self._start(uid)

    def shut_down(self, pid: int) -> str:
        """End a server; prints nothing."""
        self.actions.append(StopServer(pid))
        return ""

    def started(self, pid: int, uid: int, name: str = "") -> None:
        """The process of a server exists. name: as in ``StartServer``."""
        del name
        self._starting = None
        self.servers.append(SimulatedServer(pid, uid, self.defaults))
        self.actions.append(WriteLog(f"Starting new server {pid} for user {uid}"))

    def not_started(self, uid: int, name: str, reason: str) -> None:
        """The program of a server could not be run: its clients are answered that there is none."""
        del name
        self._starting = None
        self.actions.append(WriteLog(f"Failed to start server: {reason}"))
        self._refuse([client for client in self._pending if self._user(client) == uid])
        self._admit_pending()

    def ready(self, pid: int) -> None:
        """A server has created its contexts."""
        for server in self._with_pid(pid):
            server.status = ServerStatus.ACTIVE
            self.actions.append(WriteLog(f"NEW SERVER {pid}: Ready"))
        self._admit_pending()

    def ended(self, pid: int, code: int) -> None:
        """A server's process has ended: its clients have lost all they had.

        A real daemon restarts a server that fails at its start again and again; this one answers the clients.
        """
        for server in self._with_pid(pid):
            self.servers.remove(server)
            if server.status is ServerStatus.INITIALIZING:
                self.actions.append(WriteLog("Server encountered a fatal exception. Shutting down"))
            self.actions.append(WriteLog(f"Server {pid} exited with status {code}"))
            for client in server.clients:
                client.error = client.error or CONNECTION_FAILED
            if server.status is ServerStatus.INITIALIZING:
                self._refuse([client for client in self._pending if self._user(client) == server.uid])
        self._admit_pending()

    def disconnect(self, client: SimulatedClient) -> None:
        """A client's process has ended or closed its connection."""
        if client in self._pending:
            self._pending.remove(client)
        for server in self.servers:
            if client in server.clients:
                if client.working:
                    self._wedge(server)
                server.clients.remove(client)
                self._recover(server)
        self._admit_pending()

    def _wedge(self, server: SimulatedServer) -> None:
        """A client has gone with work in flight. Seen by others (NVIDIA's Dynamo project, driver 615): its
        neighbours get an illegal address, and clients that come later are not served until the daemon is
        restarted. What state the server then has is not known; here it is FAULT.
        """
        server.status, server.wedged = ServerStatus.FAULT, True
        for client in server.clients:
            client.error = client.error or ILLEGAL_ADDRESS

    def fault(self, client: SimulatedClient) -> None:
        """A fatal fault of one client: every client of its server gets the error."""
        for server in self.servers:
            if client in server.clients:
                server.status = ServerStatus.FAULT
                for simulated_client in server.clients:
                    simulated_client.error = simulated_client.error or LAUNCH_FAILED

    def terminate(self, server_pid: int, client_pid: int) -> bool:
        """Destroy the contexts of a client; whether there was such a client."""
        for server in self._with_pid(server_pid):
            for client in [
                simulated_client for simulated_client in server.clients if simulated_client.pid == client_pid
            ]:
                client.error, client.used_bytes, client.working = TERMINATED, 0, False
                server.clients.remove(client)
                self._recover(server)
                self._admit_pending()
                return True
        return False

    def allocate(self, client: SimulatedClient, amount_bytes: int) -> str:
        """The error of an allocation; empty: the client has the memory."""
        if client.error:
            return client.error
        device = self.defaults.devices[0]
        used = sum(
            simulated_client.used_bytes for server in self.servers for simulated_client in server.clients
        )
        over = client.limit_bytes is not None and client.used_bytes + amount_bytes > client.limit_bytes
        if over or used + amount_bytes > self.node.gpus[device]:
            return OUT_OF_MEMORY
        client.used_bytes += amount_bytes
        return ""

    def close(self) -> None:
        """Admit no more clients."""
        self.closing = True
        for client in self._pending:
            self._answer(client, CONNECTION_FAILED)
        self._pending.clear()

    @property
    def idle(self) -> bool:
        return not any(server.clients for server in self.servers)

    def server(self, pid: int) -> SimulatedServer | None:
        """The server with this pid."""
        return next(iter(self._with_pid(pid)), None)

    def _refuse(self, clients: Iterable[SimulatedClient]) -> None:
        """Clients that wait for a server that does not come."""
        for client in clients:
            self._pending.remove(client)
            self._answer(client, CONNECTION_FAILED)

    # --- rules --------------------------------------------------------------------------------

    def _user(self, client: SimulatedClient) -> int:
        """The user whose server serves a client: with one server for all users, the daemon's own."""
        return self._uid if self._multi_user else client.uid

    def _server_of(self, client: SimulatedClient) -> SimulatedServer | None:
        return next((server for server in self.servers if server.uid == self._user(client)), None)

    def _admit_pending(self) -> None:
        """Admit clients, of one user at a time: the server of another user has to be idle, and is stopped."""
        while self._pending and self._starting is None:
            user = self._user(self._pending[0])
            if not self.servers:
                return self._start(user)
            server = self.servers[0]
            if server.uid != user:
                if not server.clients and server.status is ServerStatus.ACTIVE:
                    self.actions.append(StopServer(server.pid))
                return None
            if server.status is ServerStatus.INITIALIZING:
                return None
            client = self._pending.pop(0)
            if server.status is ServerStatus.FAULT:
                self._answer(client, NOT_READY)
            else:
                self._admit(client, server)
        return None

    def _start(self, uid: int) -> None:
        self._starting = uid
        self.actions.append(StartServer(uid, devices=len(self.defaults.devices)))

    def _admit(self, client: SimulatedClient, server: SimulatedServer) -> None:
        devices = self.defaults.devices
        visible = self._visible_to(client)
        if not visible:
            return self._answer(client, NO_DEVICE)
        if len(server.clients) >= self.node.clients:
            return self._answer(client, TOO_MANY)
        device = devices[0]
        variable = client.env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
        limits = self._limits_for(client, server)
        client.limit_bytes = client_limit(limits.limit_in_force(device), variable, visible, device)
        own = DaemonLimits(devices).with_threads(client.env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""))
        client.threads = self._threads_for(limits, own)
        server.clients.append(client)
        return self._answer(client, "")

    def _limits_for(self, client: SimulatedClient, server: SimulatedServer) -> DaemonLimits:
        del client
        return server.limits

    def _threads_for(self, limits: DaemonLimits, own: DaemonLimits) -> float:
        """The client's own variable can lower the percentage, not raise it."""
        return min(limits.threads, own.threads)

    def _visible_to(self, client: SimulatedClient) -> tuple[str, ...]:
        """The devices that a client sees. Its ordinals count the devices of the daemon, not of the node."""
        devices = self.defaults.devices
        seen = MpsNode(dict.fromkeys(devices, 0))
        return seen.visible(client.env.get("CUDA_VISIBLE_DEVICES"))

    def _recover(self, server: SimulatedServer) -> None:
        """After a fault a server works again when all its clients have gone."""
        if server.status is ServerStatus.FAULT and not server.clients and not server.wedged:
            server.status = ServerStatus.ACTIVE

    def _answer(self, client: SimulatedClient, error: str) -> None:
        self.actions.append(AnswerClient(client, error))

    def _with_pid(self, pid: int) -> Iterable[SimulatedServer]:
        return [server for server in self.servers if server.pid == pid]

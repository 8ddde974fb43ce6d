"""The process of the simulated control daemon: sockets, servers, the log. One thread, one loop."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from msgspec import Struct, field

from partage.model.mps import CONTROL_PROGRAM
from partage.sim.mps import commands_v3
from partage.sim.mps.clients import (
    Action,
    AnswerClient,
    CloseSocket,
    OpenSocket,
    SimulatedClient,
    StartServer,
    StopServer,
    WriteLog,
    WriteServerLog,
)
from partage.sim.mps.commands_v2 import NO_QUIT, run_command
from partage.sim.mps.named_state import CommandError, NamedState
from partage.sim.mps.node import MpsNode
from partage.sim.mps.server_processes import ServerProcesses
from partage.sim.mps.state import MpsControlState
from partage.sim.mps.wire import CONTROL_HELLO, ERROR_PREFIX, QUIT
from partage.values import Frozen

_UCRED = struct.Struct("3i")
_READ_BYTES = 65536
_MOST_LINE_BYTES = 1 << 20


class _Peer(Struct, eq=False):
    """One connection.

    commands: it has said that it is a control program. client: None until its first request as a client.
    admitted: the state has admitted it.
    route: see ``SimulatedClient``.
    """

    sock: socket.socket
    pid: int
    uid: int
    route: tuple[str, str] = ("", "")
    buffer: bytes = b""
    commands: bool = False
    client: SimulatedClient | None = None
    admitted: bool = False

    @property
    def waited_for(self) -> bool:
        """It is connected, and has not said what it is."""
        return self.sock.fileno() >= 0 and not self.commands and self.client is None


class DaemonSettings(Frozen):
    """What one daemon was started with. programs: directory of its own program and the server's.

    protocol: version of the control interface. configuration: a file of version 3.
    """

    pipe: Path
    log: Path
    programs: Path
    node: MpsNode
    devices: tuple[str, ...]
    multi_user: bool
    environment: dict[str, str] = field(default_factory=dict)
    protocol: int = 2
    configuration: Path | None = None


class ControlDaemon:
    """Serves one pipe directory until it is told to quit."""

    def __init__(self, settings: DaemonSettings, state: MpsControlState | None = None) -> None:
        """state: to begin with; None: as the settings say. Raises OSError where the directories cannot be
        used, CommandError for a bad configuration.
        """
        self._settings = settings
        self._state = state or _state(settings)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[SimulatedClient, _Peer] = {}
        self._servers = ServerProcesses(settings.programs, settings.log / "server.log", settings.environment)
        self._commander: _Peer | None = None
        self._newcomer: _Peer | None = None
        self._kept_waiting: list[selectors.SelectorKey] = []
        self._quitting: _Peer | None = None
        self._forced_s: float | None = None
        self._log_file = (settings.log / "control.log").open("a", encoding="utf-8", buffering=1)
        self._listener = _listen(settings.pipe / "control")
        self._listeners: dict[tuple[str, str], socket.socket] = {}
        if settings.node.writes_pid:
            (settings.pipe / f"{CONTROL_PROGRAM}.pid").write_text(f"{os.getpid()}\n", encoding="ascii")

    def run(self) -> None:
        """Serve until the end."""
        self._log(f"Starting control daemon using socket {self._settings.pipe}/control")
        self._watch(self._listener, lambda: self._accept(self._listener, ("", "")))
        self._run_actions()
        while not self._is_over():
            for key, _ in self._selector.select(timeout=self._time_left_s()):
                # One that came before may have ended this one, or have it wait.
                if self._selector.get_map().get(key.fd) == key:
                    key.data()
                    self._run_actions()
        self._close()

    # --- connections --------------------------------------------------------------------------

    def _watch(self, source: socket.socket | IO[bytes], act: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    def _accept(self, listener: socket.socket, route: tuple[str, str]) -> None:
        sock, _ = listener.accept()
        pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        self._log("Accepting connection...")
        peer = _Peer(sock, pid, uid, route)
        self._watch(sock, lambda: self._read(peer))
        if self._settings.protocol == 2:
            self._wait_for(peer)

    def _wait_for(self, peer: _Peer) -> None:
        """Until a new connection has said what it is, nobody else is taken, and no command is answered (535,
        550 and 555; it is not known of version 3). Clients that are there speak to their server.
        """
        others = [self._listener] if self._commander is None else [self._listener, self._commander.sock]
        self._newcomer, self._kept_waiting = peer, [self._selector.unregister(sock) for sock in others]

    def _read(self, peer: _Peer) -> None:
        self._take_in(peer)
        if peer is self._newcomer and not peer.waited_for:
            self._newcomer = None
            for key in self._kept_waiting:
                self._selector.register(key.fileobj, key.events, key.data)

    def _take_in(self, peer: _Peer) -> None:
        try:
            data = peer.sock.recv(_READ_BYTES)
        except OSError:
            data = b""
        peer.buffer += data
        if not data or len(peer.buffer) > _MOST_LINE_BYTES:
            return self._drop(peer)
        while b"\n" in peer.buffer and peer.sock.fileno() >= 0:
            line, _, peer.buffer = peer.buffer.partition(b"\n")
            self._hear(peer, line)
        return None

    def _hear(self, peer: _Peer, line: bytes) -> None:
        if peer.commands:
            return self._command(peer, line.decode(errors="replace"))
        if peer.client is None and line == CONTROL_HELLO:
            return self._take_commands(peer)
        try:
            return self._request(peer, json.loads(line))
        except (ValueError, KeyError, TypeError):
            return self._drop(peer)  # not a client of ours: the line is no request

    def _drop(self, peer: _Peer) -> None:
        if self._commander is peer:
            self._commander = None
            self._log("UI closed")
        self._selector.unregister(peer.sock)
        peer.sock.close()
        if peer.client is not None:
            self._peers.pop(peer.client, None)
            self._state.disconnect(peer.client)

    # --- clients ------------------------------------------------------------------------------

    def _request(self, peer: _Peer, request: dict[str, Any]) -> None:
        """A client's request; its first one asks to be admitted. Raises KeyError, TypeError, ValueError."""
        if peer.client is None:
            known = _pid_namespace(peer.pid), _command_name(peer.pid), dict(request["env"])
            peer.client = SimulatedClient(peer.pid, peer.uid, *known, route=peer.route)
            self._peers[peer.client] = peer
            self._state.connect(peer.client)
        elif peer.admitted:
            self._answer(peer, error=self._cuda_call(peer.client, request))
        else:
            raise ValueError("a client waits until it is admitted")

    def _cuda_call(self, client: SimulatedClient, request: dict[str, Any]) -> str:
        """The error of one CUDA call; empty: it worked."""
        match request["do"]:
            case "allocate":
                return self._state.allocate(client, int(request["bytes"]))
            case "fault":
                self._state.fault(client)
            case "work":
                client.working = not client.error
        return client.error

    def _answer(self, peer: _Peer, **reply: object) -> None:
        with contextlib.suppress(OSError):  # it has closed the connection: the next read shows that
            peer.sock.sendall(json.dumps(reply).encode() + b"\n")

    # --- commands -----------------------------------------------------------------------------

    def _take_commands(self, peer: _Peer) -> None:
        """One control program at a time, also one that asks nothing: who comes meanwhile is sent away without
        a word (535, 550 and 555; it is not known of version 3).
        """
        if self._commander is not None and self._settings.protocol == 2:
            return self._drop(peer)
        self._commander, peer.commands = peer, True
        return self._log("NEW UI")

    def _command(self, peer: _Peer, command: str) -> None:
        self._log(f"Cmd:{command}")
        words = command.split()
        if isinstance(self._state, NamedState):
            if not self._state.is_root(peer.uid):
                return self._print(peer, "Permission denied")  # the words of a real daemon are not known
            return self._command_v3(self._state, peer, words)
        if words[:1] != ["quit"]:
            return self._print(peer, run_command(self._state, command, peer.uid))
        if not self._state.is_root(peer.uid):
            return self._print(peer, NO_QUIT)
        self._state.close()
        self._quitting = peer
        if len(words) == 3 and words[1] == "-t" and words[2].isdecimal():
            self._forced_s = time.monotonic() + int(words[2])
        return None

    def _command_v3(self, state: NamedState, peer: _Peer, words: list[str]) -> None:
        """A command of version 3. Whether a real daemon waits for clients before it quits is not known."""
        if words == [QUIT]:
            state.close()
            self._quitting, self._forced_s = peer, time.monotonic()
            return None
        try:
            return self._print(peer, commands_v3.run_command(state, str(self._settings.pipe), words))
        except CommandError as error:
            return self._print(peer, f"{ERROR_PREFIX}{error}")

    def _print(self, peer: _Peer, text: str) -> None:
        """Answer a control program, which may have more to ask."""
        for line in text.splitlines():
            self._log(line)
        answer = text.encode()
        with contextlib.suppress(OSError):  # it did not wait
            peer.sock.sendall(b"%d\n" % len(answer) + answer)

    # --- actions of the state -----------------------------------------------------------------

    def _run_actions(self) -> None:
        """Do what the state asks for, until it asks for nothing more."""
        while self._state.actions:
            self._run_action(self._state.actions.pop(0))

    def _run_action(self, action: Action) -> None:
        match action:
            case AnswerClient(client, error):
                self._answer_client(client, error)
            case StartServer(uid, name, devices):
                self._start_server(uid, name, devices)
            case StopServer(pid):
                self._servers.stop(pid)
            case WriteLog(text):
                self._log(text)
            case WriteServerLog(name, text):
                directory = self._settings.log / name
                directory.mkdir(exist_ok=True)
                (directory / "server.log").write_text(f"{text}\n", encoding="utf-8")
            case OpenSocket(route):
                self._open_socket(route)
            case CloseSocket(route):
                self._close_socket(route)

    def _start_server(self, uid: int, name: str, devices: int) -> None:
        """Run the server's program, which is looked for only now: its file may have gone since the daemon
        was started.
        """
        try:
            pid, output = self._servers.start(uid, devices)
        except OSError as error:
            return self._state.not_started(uid, name, f"{error.filename}: {error.strerror}")
        self._state.started(pid, uid, name)
        return self._watch(output, lambda: self._read_server(pid, output))

    def _answer_client(self, client: SimulatedClient, error: str) -> None:
        peer = self._peers.get(client)
        if peer is not None:
            peer.admitted = not error
            self._answer(peer, error=error)

    def _read_server(self, pid: int, output: IO[bytes]) -> None:
        """A server is ready, or has ended."""
        if os.read(output.fileno(), 64):
            return self._state.ready(pid)
        self._selector.unregister(output)
        return self._state.ended(pid, self._servers.ended(pid))

    def _open_socket(self, route: tuple[str, str]) -> None:
        """A socket in a directory of its own, so that it can be mounted into one container only."""
        directory = self._settings.pipe.joinpath(*route)
        directory.mkdir(exist_ok=True)
        listener = self._listeners[route] = _listen(directory / "control")
        self._watch(listener, lambda: self._accept(listener, route))

    def _close_socket(self, route: tuple[str, str]) -> None:
        listener = self._listeners.pop(route)
        self._selector.unregister(listener)
        listener.close()
        directory = self._settings.pipe.joinpath(*route)
        (directory / "control").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the directory has other files
            directory.rmdir()

    # --- the end ------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._quitting is None:
            return False
        forced = self._forced_s is not None and time.monotonic() >= self._forced_s
        return self._state.idle or forced

    def _time_left_s(self) -> float | None:
        return None if self._forced_s is None else max(0.0, self._forced_s - time.monotonic())

    def _close(self) -> None:
        """End the servers. The control program that said quit has its answer when this process ends."""
        self._servers.end_all()
        self._log("Exit")
        for route in list(reversed(self._listeners)):
            self._close_socket(route)
        for name in ("control", f"{CONTROL_PROGRAM}.pid"):
            (self._settings.pipe / name).unlink(missing_ok=True)
        self._log_file.close()

    def _log(self, text: str) -> None:
        now_s = time.time()
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_s)) + f".{now_s % 1 * 1000:03.0f}"
        with contextlib.suppress(OSError):  # a full disk does not end the daemon
            self._log_file.write(f"[{now} Control {os.getpid()}] {text}\n")


def _state(settings: DaemonSettings) -> MpsControlState:
    """Raises CommandError for a bad configuration."""
    uid, many = os.geteuid(), settings.multi_user
    if settings.protocol == 2:
        plain = MpsControlState(settings.node, settings.devices, uid=uid, multi_user=many)
        if settings.node.reads_limits and not settings.node.ignores_limits:
            plain.defaults = plain.defaults.with_environment(settings.environment)
        return plain
    state = NamedState(settings.node, settings.devices, uid=uid, multi_user=many)
    if settings.configuration is not None:
        import tomllib

        try:
            state.apply(tomllib.loads(settings.configuration.read_text(encoding="utf-8")))
        except ValueError as error:
            raise CommandError(str(error)) from error
    return state


def _listen(path: Path) -> socket.socket:
    """A socket for all users. If ``path`` exists, its daemon has ended: one that runs would have answered."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(128)
    return listener


def _pid_namespace(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return 0


def _command_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def main(settings: DaemonSettings, report: Callable[[str], None]) -> int:
    """Run a daemon in this process. report: called once, with the error, or empty when the daemon runs."""
    try:
        daemon = ControlDaemon(settings)
    except (OSError, CommandError) as error:
        # The words of a real daemon are not known.
        report(f"Failed to start the control daemon: {error}")
        return 1
    report("")
    daemon.run()
    sys.stdout.flush()
    return 0

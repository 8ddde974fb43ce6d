"""The simulated control daemon's process: sockets, servers' processes, the log. One thread, one loop."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partage.sim.mps import modules
from partage.sim.mps.commands import obey
from partage.sim.mps.control import ASKS, FAILED, QUIT
from partage.sim.mps.named import NamedState, Wrong
from partage.sim.mps.node import PROGRAM, SERVER_PROGRAM, MpsNode
from partage.sim.mps.state import (
    Effect,
    Log,
    LogOfServer,
    MpsState,
    Open,
    Shut,
    SimulatedClient,
    StartServer,
    StopServer,
    Tell,
)

_UCRED = struct.Struct("3i")
_READ_BYTES = 65536
_MOST_LINE_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class _Peer:
    """One connection.

    client: once it has said that it is one; let_in: once it was. route: see ``SimulatedClient``.
    """

    sock: socket.socket
    pid: int
    uid: int
    route: tuple[str, str] = ("", "")
    buffer: bytes = b""
    client: SimulatedClient | None = None
    let_in: bool = False


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """What one daemon was started with. programs: where its own program and the server's are.

    protocol: version of its language. configuration: a file of version 3.
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

    def __init__(self, settings: DaemonSettings) -> None:
        """Raises OSError where the directories cannot be used, Wrong for a bad configuration."""
        self._settings = settings
        self._state = _state(settings)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[SimulatedClient, _Peer] = {}
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        self._quitting: _Peer | None = None
        self._forced_s: float | None = None
        self._log_file = (settings.log / "control.log").open("a", encoding="utf-8", buffering=1)
        self._listener = _listen(settings.pipe / "control")
        self._doors: dict[tuple[str, str], socket.socket] = {}
        (settings.pipe / f"{PROGRAM}.pid").write_text(f"{os.getpid()}\n", encoding="ascii")

    def run(self) -> None:
        """Serve until the end."""
        self._say(f"Starting control daemon using socket {self._settings.pipe}/control")
        self._watch(self._listener, lambda: self._accept(self._listener, ("", "")))
        self._do()
        while not self._over():
            for key, _ in self._selector.select(timeout=self._patience_s()):
                key.data()
                self._do()
        self._close()

    # --- sockets ------------------------------------------------------------------------------

    def _watch(self, source: Any, act: Callable[[], None]) -> None:  # noqa: ANN401 - a socket or a pipe
        self._selector.register(source, selectors.EVENT_READ, act)

    def _accept(self, listener: socket.socket, route: tuple[str, str]) -> None:
        sock, _ = listener.accept()
        pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        self._say("Accepting connection...")
        peer = _Peer(sock, pid, uid, route)
        self._watch(sock, lambda: self._read(peer))

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.sock.recv(_READ_BYTES)
        except OSError:
            data = b""
        peer.buffer += data
        if not data or len(peer.buffer) > _MOST_LINE_BYTES:
            return self._drop(peer)
        while b"\n" in peer.buffer:
            line, _, peer.buffer = peer.buffer.partition(b"\n")
            if peer.client is None and line.startswith(ASKS):
                return self._control(peer, line.removeprefix(ASKS).decode(errors="replace"))
            try:
                self._serve(peer, json.loads(line))
            except (ValueError, KeyError, TypeError):
                return self._drop(peer)  # no client of ours: what it says is no request
        return None

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.sock)
        peer.sock.close()
        if peer.client is not None:
            self._peers.pop(peer.client, None)
            self._state.leave(peer.client)

    def _answer(self, peer: _Peer, **reply: object) -> None:
        with contextlib.suppress(OSError):  # it has gone: its end of the connection tells
            peer.sock.sendall(json.dumps(reply).encode() + b"\n")

    def _print(self, peer: _Peer, text: str) -> None:
        """The answer to a control program, which ends its connection."""
        with contextlib.suppress(OSError):  # it did not wait
            peer.sock.sendall(text.encode())
        self._drop(peer)

    def _serve(self, peer: _Peer, request: dict[str, Any]) -> None:
        if peer.client is None:
            known = _namespace(peer.pid), _command(peer.pid), dict(request["env"])
            peer.client = SimulatedClient(peer.pid, peer.uid, *known, route=peer.route)
            self._peers[peer.client] = peer
            self._state.arrive(peer.client)
        elif peer.let_in:
            self._answer(peer, error=self._work(peer.client, request))
        else:
            raise ValueError("a client waits until it is let in")

    def _work(self, client: SimulatedClient, request: dict[str, Any]) -> str:
        """One CUDA call of a client; what it answers."""
        match request["do"]:
            case "allocate":
                return self._state.allocate(client, int(request["bytes"]))
            case "fault":
                self._state.fault(client)
        return client.lost

    def _control(self, peer: _Peer, command: str) -> None:
        # As real daemons log it: a control program is no client, and brings no client's credentials.
        self._say("User did not send valid credentials")
        if peer.uid not in (0, os.geteuid()):
            return self._print(peer, "Permission denied")  # in what words is not known
        words = command.split()
        if isinstance(self._state, NamedState):
            return self._module(self._state, peer, words)
        if words[:1] != ["quit"]:
            return self._print(peer, obey(self._state, command))
        self._state.close()
        self._quitting = peer
        if len(words) == 3 and words[1] == "-t" and words[2].isdecimal():
            self._forced_s = time.monotonic() + int(words[2])
        return None

    def _module(self, state: NamedState, peer: _Peer, words: list[str]) -> None:
        """A command of version 3. Whether a real daemon that has to quit waits for clients is not known."""
        if words == [QUIT]:
            state.close()
            self._quitting, self._forced_s = peer, time.monotonic()
            return None
        try:
            return self._print(peer, modules.obey(state, str(self._settings.pipe), words))
        except Wrong as wrong:
            return self._print(peer, f"{FAILED}{wrong}")

    # --- servers ------------------------------------------------------------------------------

    def _do(self) -> None:
        """What the state wants done, until it wants nothing more."""
        while self._state.effects:
            self._effect(self._state.effects.pop(0))

    def _effect(self, effect: Effect) -> None:
        match effect:
            case Tell(client, error):
                self._tell(client, error)
            case StartServer(uid, name, devices):
                self._start_server(uid, name, devices)
            case StopServer(pid):
                self._stop_server(pid)
            case Log(text):
                self._say(text)
            case LogOfServer(name, text):
                directory = self._settings.log / name
                directory.mkdir(exist_ok=True)
                (directory / "server.log").write_text(f"{text}\n", encoding="utf-8")
            case Open(route):
                self._open(route)
            case Shut(route):
                self._shut(route)

    def _open(self, route: tuple[str, str]) -> None:
        """A socket in a directory of its own, which somebody may be given and the others not."""
        directory = self._settings.pipe.joinpath(*route)
        directory.mkdir(exist_ok=True)
        listener = self._doors[route] = _listen(directory / "control")
        self._watch(listener, lambda: self._accept(listener, route))

    def _shut(self, route: tuple[str, str]) -> None:
        listener = self._doors.pop(route)
        self._selector.unregister(listener)
        listener.close()
        directory = self._settings.pipe.joinpath(*route)
        (directory / "control").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody has put something in it
            directory.rmdir()

    def _tell(self, client: SimulatedClient, error: str) -> None:
        peer = self._peers.get(client)
        if peer is not None:
            peer.let_in = not error
            self._answer(peer, error=error)

    def _start_server(self, uid: int, name: str, devices: int) -> None:
        """A process of the server's program, as the user whose clients it serves."""
        process = subprocess.Popen(  # noqa: S603 - the program beside ours
            [self._settings.programs / SERVER_PROGRAM, str(uid), str(devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=self._settings.environment,
        )
        self._servers[process.pid] = process
        self._state.started(process.pid, uid, name)
        self._watch(process.stdout, lambda: self._heard(process))

    def _heard(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        if os.read(process.stdout.fileno(), 64):
            return self._state.ready(process.pid)
        self._selector.unregister(process.stdout)
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()
        code = process.wait()
        del self._servers[process.pid]
        return self._state.ended(process.pid, code)

    def _stop_server(self, pid: int) -> None:
        """It ends with its standard input."""
        process = self._servers[pid]
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()

    # --- the end ------------------------------------------------------------------------------

    def _over(self) -> bool:
        if self._quitting is None:
            return False
        forced = self._forced_s is not None and time.monotonic() >= self._forced_s
        return self._state.idle or forced

    def _patience_s(self) -> float | None:
        return None if self._forced_s is None else max(0.0, self._forced_s - time.monotonic())

    def _close(self) -> None:
        """End the servers, and tell whoever said quit by going: its connection ends with the process."""
        for pid, process in list(self._servers.items()):
            self._stop_server(pid)
            process.wait()
        self._say("Exit")
        for route in list(reversed(self._doors)):
            self._shut(route)
        for name in ("control", f"{PROGRAM}.pid"):
            (self._settings.pipe / name).unlink(missing_ok=True)
        self._log_file.close()

    def _say(self, text: str) -> None:
        now_s = time.time()
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_s)) + f".{now_s % 1 * 1000:03.0f}"
        with contextlib.suppress(OSError):  # a full disk does not end the daemon
            self._log_file.write(f"[{now} Control {os.getpid()}] {text}\n")


def _state(settings: DaemonSettings) -> MpsState:
    uid, many = os.geteuid(), settings.multi_user
    if settings.protocol == 2:
        return MpsState(settings.node, settings.devices, uid=uid, multi_user=many)
    state = NamedState(settings.node, settings.devices, uid=uid, multi_user=many)
    if settings.configuration is not None:
        import tomllib

        try:
            state.apply(tomllib.loads(settings.configuration.read_text(encoding="utf-8")))
        except ValueError as error:
            raise Wrong(str(error)) from error
    return state


def _listen(path: Path) -> socket.socket:
    """A socket that everybody may connect to. What is in the way is a dead daemon's: a living one answers."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(128)
    return listener


def _namespace(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def main(settings: DaemonSettings, report: Callable[[str], None]) -> int:
    """Run a daemon in this process. report: told once that it runs (nothing), or why it cannot."""
    try:
        daemon = ControlDaemon(settings)
    except (OSError, Wrong) as error:
        # In what words a real one says so is not known.
        report(f"Failed to start the control daemon: {error}")
        return 1
    report("")
    daemon.run()
    sys.stdout.flush()
    return 0

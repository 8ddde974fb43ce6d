"""What the state of a simulated MPS daemon asks of the daemon's process."""

from __future__ import annotations

from dataclasses import dataclass

from partage.sim.mps.clients import SimulatedClient


@dataclass(frozen=True, slots=True)
class AnswerClient:
    """Answer a client that asked to be admitted. error: why not; empty: it is admitted."""

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
class WriteLog:
    """Write a line into the control log."""

    text: str


@dataclass(frozen=True, slots=True)
class WriteServerLog:
    """Write a line into the log of a named server."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """Listen in a directory below the pipe directory. route: names of server and namespace."""

    route: tuple[str, str]


@dataclass(frozen=True, slots=True)
class CloseSocket:
    """No longer listen there, and remove the directory."""

    route: tuple[str, str]


Action = AnswerClient | StartServer | StopServer | WriteLog | WriteServerLog | OpenSocket | CloseSocket

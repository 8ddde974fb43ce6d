"""What the state of a simulated MPS daemon asks of the daemon's process."""

from __future__ import annotations

from partage.sim.mps.clients import SimulatedClient
from partage.values import Frozen


class AnswerClient(Frozen):
    """Answer a client that asked to be admitted. error: why not; empty: it is admitted."""

    client: SimulatedClient
    error: str


class StartServer(Frozen):
    """Run a server for a user. devices: how many it sees."""

    uid: int
    name: str = ""
    devices: int = 1


class StopServer(Frozen):
    """End a server."""

    pid: int


class WriteLog(Frozen):
    """Write a line into the control log."""

    text: str


class WriteServerLog(Frozen):
    """Write a line into the log of a named server."""

    name: str
    text: str


class OpenSocket(Frozen):
    """Listen in a directory below the pipe directory. route: names of server and namespace."""

    route: tuple[str, str]


class CloseSocket(Frozen):
    """No longer listen there, and remove the directory."""

    route: tuple[str, str]


Action = AnswerClient | StartServer | StopServer | WriteLog | WriteServerLog | OpenSocket | CloseSocket

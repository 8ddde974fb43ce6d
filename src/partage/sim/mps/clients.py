"""Clients and servers of a simulated MPS daemon, what CUDA calls of a client answer, and what the state of
the daemon asks of its process.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from partage.model.mps import ServerStatus
from partage.sim.mps.limits import DaemonLimits
from partage.values import Frozen

# Names of errors: cuda.h.
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
NO_DEVICE = "CUDA_ERROR_NO_DEVICE"
LAUNCH_FAILED = "CUDA_ERROR_LAUNCH_FAILED"
ILLEGAL_ADDRESS = "CUDA_ERROR_ILLEGAL_ADDRESS"
CONNECTION_FAILED = "CUDA_ERROR_MPS_CONNECTION_FAILED"
NOT_READY = "CUDA_ERROR_MPS_SERVER_NOT_READY"
TOO_MANY = "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
TERMINATED = "CUDA_ERROR_MPS_CLIENT_TERMINATED"
NOT_PERMITTED = "CUDA_ERROR_NOT_PERMITTED"


class SimulatedClient(Struct, eq=False):
    """One process and its connection. env: its environment variables.

    error: what all its calls answer from now on; empty: they work. working: a kernel of it runs and does not
    end.
    route: names of the server and the namespace through whose socket it came, empty without names.
    """

    pid: int
    uid: int
    namespace: int = 0
    command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    used_bytes: int = 0
    limit_bytes: int | None = None
    threads: float = 100.0
    error: str = ""
    working: bool = False
    route: tuple[str, str] = ("", "")


class SimulatedServer(Struct, eq=False):
    """A server and its clients. limits: for clients that come next (``set_...`` changes them).

    wedged: it serves nobody any more, also when all its clients have gone.
    """

    pid: int
    uid: int
    limits: DaemonLimits
    status: ServerStatus = ServerStatus.INITIALIZING
    clients: list[SimulatedClient] = field(default_factory=list)
    wedged: bool = False


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

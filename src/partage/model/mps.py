"""MPS control daemons as values: what one is asked to be, and how one was found.

There is one control daemon for each GPU or MIG device that is shared by MPS. It starts servers, one for each
user unless it serves several users with one, and the servers have clients: processes, not containers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from partage.units import MIB, format_bytes

_DEVICE = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z-]*", re.ASCII)
_LONGEST_DEVICE = 64
_NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)

SERVER = "gpu"
"""The one named server of a daemon that speaks version 3 of the MPS control interface. Short: it is a part of
the path of a socket."""


@dataclass(frozen=True, slots=True)
class MpsNamespace:
    """A part of a named server: who connects through its directory has its limits, and no other's.

    name: lower-case letters, digits and underscores, at most 64 (NVIDIA's MPS guide, release 615).
    memory_bytes, threads_percent: of each client; None: all. The server's own limits are not inherited.
    """

    name: str
    memory_bytes: int | None = None
    threads_percent: int | None = None

    def __str__(self) -> str:
        return f"{_amounts(self.memory_bytes, self.threads_percent)} in {self.name}"


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a daemon allows each of its clients. None: no limit was asked for, or is set.

    Without namespaces: each client of its next server. With namespaces: each client that is in none of them.
    """

    memory_bytes: int | None = None
    threads_percent: int | None = None
    namespaces: tuple[MpsNamespace, ...] = ()

    def __str__(self) -> str:
        each = f"{_amounts(self.memory_bytes, self.threads_percent)} for each client"
        return f"{', '.join(map(str, self.namespaces))}, else {each}" if self.namespaces else each


def _amounts(memory_bytes: int | None, threads_percent: int | None) -> str:
    memory = "any memory" if memory_bytes is None else format_bytes(memory_bytes)
    return f"{memory} and {100 if threads_percent is None else threads_percent} % of threads"


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """What a control daemon is asked to be.

    gpu:    UUID of the GPU.
    device: what the daemon sees as its only CUDA device: the GPU's UUID, or that of one MIG device on it.
    memory_bytes: what each client may allocate, whole MiB; None: all.
    threads_percent: share of the multiprocessors that each client may fill; None: all.
    multi_user: one server, run by root, for the clients of all users. None: where the program can do that.
    namespaces: those of its named server, in whose absence the figures above hold. None at all: the daemon
    speaks version 2 of the control interface, and has neither.

    Raises ValueError for what a daemon would ignore or misread.
    """

    gpu: str
    device: str
    memory_bytes: int | None = None
    threads_percent: int | None = None
    multi_user: bool | None = None
    namespaces: tuple[MpsNamespace, ...] = ()

    def __post_init__(self) -> None:
        if not is_device_uuid(self.device):
            raise ValueError(f"{self.device[:_LONGEST_DEVICE]!r} is no UUID of a GPU or MIG device")
        _check(self.memory_bytes, self.threads_percent)
        names = [one.name for one in self.namespaces]
        for one in self.namespaces:
            if one.name == "default" or not _NAME.fullmatch(one.name) or names.count(one.name) > 1:
                raise ValueError(f"{one.name[:_LONGEST_DEVICE]!r} cannot name a namespace, or does twice")
            _check(one.memory_bytes, one.threads_percent)

    @property
    def limits(self) -> ClientLimits:
        """What the daemon has to say of its limits."""
        return ClientLimits(self.memory_bytes, self.threads_percent, self.namespaces)

    @property
    def protocol(self) -> int:
        """Version of the control interface, 2 or 3."""
        return 3 if self.namespaces else 2


def _check(memory_bytes: int | None, threads_percent: int | None) -> None:
    if memory_bytes is not None and (memory_bytes < MIB or memory_bytes % MIB):
        raise ValueError(f"a limit of {memory_bytes} bytes is not in whole MiB")
    if threads_percent is not None and not 1 <= threads_percent <= 100:
        raise ValueError(f"{threads_percent} % of the threads is no limit")


def is_device_uuid(text: str) -> bool:
    """Whether it is the UUID of a GPU or MIG device: one that can name a directory, too."""
    return len(text) <= _LONGEST_DEVICE and _DEVICE.fullmatch(text) is not None


class DaemonPhase(StrEnum):
    """How a control daemon is.

    starting: it runs, but nobody has verified its limits yet, or it is about to run.
    serving:  it answers.
    fault:    it answers; a server of it had a fatal fault and takes no clients until all it has are gone.
    silent:   it runs, and does not answer, or not in a way that anybody understands.
    dead:     it does not run any more.
    """

    STARTING = "starting"
    SERVING = "serving"
    FAULT = "fault"
    SILENT = "silent"
    DEAD = "dead"


class ServerStatus(StrEnum):
    """What a control daemon says of one of its servers. unknown: words that are none of the three."""

    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAULT = "fault"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A process that works on the GPU through an MPS server.

    pid: as the daemon numbers it, the host's where the daemon runs among the host's processes.
    namespace: inode of its pid namespace; None where the daemon does not say.
    namespace_pid: its pid in there; None where /proc does not say.
    command: empty where the daemon does not say.
    """

    pid: int
    namespace: int | None = None
    namespace_pid: int | None = None
    command: str = ""

    def __str__(self) -> str:
        return f"client {self.command or 'process'} (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class MpsServer:
    """One server of a control daemon. uid: whose clients it serves; under multi-user it is root's.

    name: of a daemon that has named servers, else empty.
    """

    pid: int
    uid: int | None = None
    status: ServerStatus = ServerStatus.ACTIVE
    clients: tuple[ConnectedClient, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class DaemonState:
    """One control daemon, as it was found.

    pid: None where it does not run. limits: as read back. multi_user: as its command line has it.
    reason: a sentence: why it does not serve, or what is amiss although it does; else empty.
    """

    gpu: str
    device: str
    phase: DaemonPhase
    pid: int | None = None
    servers: tuple[MpsServer, ...] = ()
    limits: ClientLimits = ClientLimits()
    multi_user: bool = False
    reason: str = ""

    @property
    def clients(self) -> tuple[ConnectedClient, ...]:
        """The clients of all servers."""
        return tuple(client for server in self.servers for client in server.clients)

"""MPS control daemons as values: how one should be (DaemonSpec), how it was observed (DaemonState), where it
can live (its home), and who has its pipe directory. Pure.

There is one control daemon for each GPU or MIG device that is shared by MPS. It starts servers: one for each
user, or one for all users. Clients of the servers are processes, not containers.

A daemon in a cgroup or a pid namespace of a container ends with that container. In a private cgroup namespace
the container's own cgroup is called ``/``, so a path says nothing about that.

Whoever reaches a socket in the pipe directory may send commands to the daemon; which of them it carries out
depends on the user (``plan/offer/mps_command.py``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TypeGuard

from partage.errors import Unsupported
from partage.model.cgroup import Owner
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, PodUid
from partage.units import MIB, format_bytes
from partage.values import Frozen

_DEVICE = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z-]*", re.ASCII)
_LONGEST_DEVICE = 64
_NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)

CONTROL_PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"
MULTI_USER_OPTIONS = {2: "-multiuser-server", 3: "-m"}
"""The control program's option for one server for all users, by the version of the control interface.
Source: NVIDIA's MPS guide, release 615."""

DEFAULT_NAMESPACE = "default"
"""The namespace that each named server has from its start."""

SERVER = "gpu"
"""Name of the one named server of a daemon that uses version 3 of the MPS control interface. Short, because
it is part of a socket's path.
"""


_SLOT = "slot"
_CLOSED_BYTES, _CLOSED_PERCENT = MIB, 1


class MpsNamespace(Frozen):
    """A part of a named server with limits of its own. A process joins it by connecting through its
    directory.

    name: lower-case letters, digits and underscores, at most 64 (NVIDIA's MPS guide, release 615).
    memory_bytes, threads_percent: for each client; None: no limit. The limits of the server are not
    inherited.
    """

    name: str
    memory_bytes: int | None = None
    threads_percent: int | None = None

    def __str__(self) -> str:
        return f"{_amounts(self.memory_bytes, self.threads_percent)} in {self.name}"


def slot_name(number: int) -> str:
    """The name of a namespace that is there from the daemon's start and is given to one claim after another.

    number: of the first unit that the claim holds, so no two claims have one at the same time.
    """
    return f"{_SLOT}{number}"


def closed_slot(name: str) -> MpsNamespace:
    """A slot that nobody has: who is left in its directory gets next to nothing."""
    return MpsNamespace(name, _CLOSED_BYTES, _CLOSED_PERCENT)


_MOST_NAMESPACES_SHOWN = 8


class ClientLimits(Frozen):
    """What a daemon allows each of its clients. None: no limit is requested or set.

    Without namespaces: each client of servers that start later. With namespaces: each client outside of
    them. slots: how many slots there are (``slot_name``), whatever each allows now.
    """

    memory_bytes: int | None = None
    threads_percent: int | None = None
    namespaces: tuple[MpsNamespace, ...] = ()
    slots: int = 0

    @property
    def apart(self) -> bool:
        """Clients connect through namespaces."""
        return bool(self.namespaces or self.slots)

    def __str__(self) -> str:
        each = f"{_amounts(self.memory_bytes, self.threads_percent)} for each client"
        if not self.apart:
            return each
        named = [str(namespace) for namespace in self.namespaces]
        if self.slots:
            named.append(f"what its claim has in each of {self.slots} namespaces")
        if len(named) > _MOST_NAMESPACES_SHOWN:  # one for each amount of memory
            named = [named[0], f"... {named[-1]} ({len(named)} namespaces)"]
        return f"{', '.join(named)}, else {each}"


def _amounts(memory_bytes: int | None, threads_percent: int | None) -> str:
    memory = "any memory" if memory_bytes is None else format_bytes(memory_bytes)
    return f"{memory} and {100 if threads_percent is None else threads_percent}% of the SMs"


class DaemonSpec(Frozen):
    """How a control daemon should be.

    gpu:    UUID of the GPU.
    device: the only CUDA device of the daemon: the GPU's UUID, or that of one of its MIG devices.
    memory_bytes: what each client may allocate, whole MiB; None: no limit.
    threads_percent: share of the multiprocessors that each client may use; None: all.
    multi_user: one server, run by root, for the clients of all users. None: if the control program can do
    that.
    namespaces: of its named server; clients outside of them have the limits above. slots: how many more
    there are, closed until a claim gets one (``slot_name``). Neither: the daemon uses version 2 of the
    control interface, which has neither named servers nor namespaces.

    Raises ValueError for values that a daemon would ignore or misread.
    """

    gpu: GpuUuid
    device: DeviceUuid
    memory_bytes: int | None = None
    threads_percent: int | None = None
    multi_user: bool | None = None
    namespaces: tuple[MpsNamespace, ...] = ()
    slots: int = 0

    def __post_init__(self) -> None:
        if not is_device_uuid(self.device):
            raise ValueError(f"{self.device[:_LONGEST_DEVICE]!r} is not the UUID of a GPU or MIG device")
        _check(self.memory_bytes, self.threads_percent)
        names = [mps_namespace.name for mps_namespace in self.namespaces]
        for namespace in self.namespaces:
            if (
                namespace.name == DEFAULT_NAMESPACE
                or not is_mps_name(namespace.name)
                or names.count(namespace.name) > 1
            ):
                raise ValueError(
                    f"{namespace.name[:_LONGEST_DEVICE]!r} is no valid or unique name of a namespace"
                )
            _check(namespace.memory_bytes, namespace.threads_percent)

    @property
    def limits(self) -> ClientLimits:
        """The limits that the daemon should report."""
        return ClientLimits(self.memory_bytes, self.threads_percent, self.namespaces, self.slots)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of its slots."""
        return tuple(map(slot_name, range(self.slots)))

    @property
    def protocol(self) -> int:
        """Version of the control interface, 2 or 3."""
        return 3 if self.limits.apart else 2


def _check(memory_bytes: int | None, threads_percent: int | None) -> None:
    if memory_bytes is not None and (memory_bytes < MIB or memory_bytes % MIB):
        raise ValueError(f"a limit of {memory_bytes} bytes is not in whole MiB")
    if threads_percent is not None and not 1 <= threads_percent <= 100:
        raise ValueError(f"{threads_percent}% of the SMs is not a limit from 1 to 100")


def is_mps_name(text: str) -> bool:
    """Whether a server or a namespace can have this name (NVIDIA's MPS guide, release 615)."""
    return _NAME.fullmatch(text) is not None


def is_device_uuid(text: str) -> TypeGuard[DeviceUuid]:
    """Whether it is the UUID of a GPU or MIG device: one that can name a directory, too."""
    return len(text) <= _LONGEST_DEVICE and _DEVICE.fullmatch(text) is not None


class DaemonPhase(StrEnum):
    """State of a control daemon.

    starting: it runs but its limits are not verified yet, or it is about to run.
    serving:  it answers.
    fault:    it answers; one of its servers had a fatal fault and takes no clients until all its clients
    are gone.
    silent:   it runs but does not answer, or its answer cannot be parsed.
    dead:     it does not run any more.
    """

    STARTING = "starting"
    SERVING = "serving"
    FAULT = "fault"
    SILENT = "silent"
    DEAD = "dead"


class ServerStatus(StrEnum):
    """State of a server, as its control daemon reports it. unknown: any other text."""

    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAULT = "fault"
    UNKNOWN = "unknown"


class ConnectedClient(Frozen):
    """A process that uses the GPU through an MPS server.

    pid: as the daemon reports it; the host's pid if the daemon runs in the host's pid namespace.
    namespace: inode of its pid namespace; None if the daemon does not report it.
    namespace_pid: its pid in that namespace; None if /proc does not show it.
    command: empty if the daemon does not report it.
    """

    pid: int
    namespace: int | None = None
    namespace_pid: int | None = None
    command: str = ""

    def __str__(self) -> str:
        return f"client {self.command or 'process'} (pid {self.pid})"


class MpsServer(Frozen):
    """One server of a control daemon. uid: the user whose clients it serves; root if it serves all users.

    name: empty unless the daemon has named servers.
    """

    pid: int
    uid: int | None = None
    status: ServerStatus = ServerStatus.ACTIVE
    clients: tuple[ConnectedClient, ...] = ()
    name: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether it answers for itself; one of unknown status is not taken for ready."""
        return self.status in (ServerStatus.ACTIVE, ServerStatus.FAULT)


class DaemonState(Frozen):
    """One control daemon, as observed.

    gpu: None for a MIG device if no readable record of its start says it.
    pid: None if it does not run. limits: as read back; of one that has ended, as it was started with.
    multi_user: from its command line.
    reason: a sentence: why it does not serve, or a problem although it serves; else empty.
    bound_to: a sentence: with what else on the node it ends; empty: with nothing that Partage stops.
    unsettled: a sentence: why its limits have to be set again, although it serves: somebody else gave it a
    command, or nobody can tell; empty: nobody did since they were set and read back.
    doubt: a sentence: why they cannot be relied upon, whatever is set; empty: they can.
    set_ns: when they were last set and read back, on the node's monotonic clock; 0: not yet.
    outdated: it works in directories that were there before it, or that an older Partage has made; it is
    started again, in new ones, when nobody holds a share of its GPU.
    full: a sentence: which of its directories have no room left; empty: none.
    open_slots: names of the slots that are not closed now. changed_slots: those whose socket was exchanged or
    removed by who had it: nobody gets them, and the daemon is started again when its GPU is free.
    """

    gpu: GpuUuid | None
    device: DeviceUuid
    phase: DaemonPhase
    pid: int | None = None
    servers: tuple[MpsServer, ...] = ()
    limits: ClientLimits = ClientLimits()
    multi_user: bool = False
    reason: str = ""
    bound_to: str = ""
    unsettled: str = ""
    doubt: str = ""
    set_ns: int = 0
    outdated: bool = False
    full: str = ""
    open_slots: tuple[str, ...] = ()
    changed_slots: tuple[str, ...] = ()

    @property
    def renewable(self) -> bool:
        """It is to be started again when nobody holds a share of its GPU."""
        return self.outdated or bool(self.changed_slots)

    @property
    def clients(self) -> tuple[ConnectedClient, ...]:
        """The clients of all servers."""
        return tuple(client for server in self.servers for client in server.clients)


MOST_RIGHTS = 16
"""Different rights of the processes of one tenant that are told. Usually there are one or two."""

NO_HOST_PIDS = "without the node's process ids (hostPID) nobody sees who has the pipe of an MPS daemon"


class ProcessRights(Frozen):
    """What one process may do and become, from ``/proc/<pid>/status`` and ``uid_map`` (proc_pid_status(5)).

    uid, effective_uid, saved_uid: as the node counts them. no_new_privs: a set-uid program gives it nothing.
    permitted: its permitted capabilities (CapPrm). maps_root: its user namespace has the node's user 0 in
    it, so a process of it can be that user.
    """

    pid: int
    uid: int
    effective_uid: int
    saved_uid: int
    no_new_privs: bool
    permitted: int
    maps_root: bool = True

    @property
    def uids(self) -> frozenset[int]:
        """Real, effective and saved user id."""
        return frozenset((self.uid, self.effective_uid, self.saved_uid))

    @property
    def why_root(self) -> str:
        """Why it is the node's user 0, or can become it; empty if it cannot."""
        if 0 in self.uids:
            return f"process {self.pid} is the node's user 0"
        if not self.maps_root:
            return ""
        if self.permitted:
            return f"process {self.pid} has capabilities"
        if not self.no_new_privs:
            return f"process {self.pid} can become user 0 by a set-uid program"
        return ""


class PipeTenant(Frozen):
    """A container or a Slurm job with the pipe directory of one daemon.

    pod, container, job: as its cgroup says; job: empty for a container of a pod.
    whole: it reaches the daemon's own sockets; else only directories of namespaces (protocol 3).
    rights: of its processes, and of all other processes of its pod, which can be handed an open directory;
    each kind once. more: there are more than MOST_RIGHTS kinds, or they changed too fast to be read.
    beside: the other containers of its pod that run. pids: its pid namespace, where no cgroup names it.
    """

    device: DeviceUuid
    pod: PodUid = PodUid("")
    container: ContainerId = ContainerId("")
    job: str = ""
    whole: bool = True
    rights: tuple[ProcessRights, ...] = ()
    more: bool = False
    beside: tuple[ContainerId, ...] = ()
    pids: str = ""

    def __str__(self) -> str:
        if self.job:
            return f"job {self.job}"
        if self.container:
            return f"container {self.container[:12]}"
        return f"pod {self.pod}" if self.pod else "a container without a name"


class PipeTenants(Frozen):
    """All of a node. unseen: why nobody can tell; then ``rows`` says nothing."""

    rows: tuple[PipeTenant, ...] = ()
    unseen: str = ""

    def without(self, owners: Collection[Owner]) -> PipeTenants:
        """Without the pods and containers of Partage itself."""
        pods = {owner.pod for owner in owners if owner.pod}
        containers = {owner.container for owner in owners if owner.container}
        kept = (row for row in self.rows if row.pod not in pods and row.container not in containers)
        return PipeTenants(tuple(kept), self.unseen)


UNIFIED = ""
"""The hierarchy of cgroup v2. Those of v1 are named by their controllers, ``cpu,cpuacct``."""


class HomeKind(StrEnum):
    """unit: a unit of the host's systemd. cgroup: cgroups of the host. session: no more than a session of its
    own. container: it ends with the container in which it was started.
    """

    UNIT = "unit"
    CGROUP = "cgroup"
    SESSION = "session"
    CONTAINER = "container"


class HomeChoice(StrEnum):
    """What the operator chose. auto: the best that can be had. systemd: units of the host's systemd, or no
    daemons. pod: the best without systemd; in a pod whose container cannot be left, daemons end with it.
    """

    AUTO = "auto"
    SYSTEMD = "systemd"
    POD = "pod"


class Surroundings(Frozen):
    """What the process that starts a daemon can reach.

    no_systemd: why the host's systemd takes no calls, a clause; empty: it does. contained: this process is in
    a container, or in a cgroup namespace that is not the host's. host_pids: it is in the host's pid
    namespace. hierarchies: names of those that it has a cgroup in. roots: hierarchy to the directory of the
    host's own root cgroup, where that can be written.
    """

    no_systemd: str = "no systemd runs on this node"
    contained: bool = False
    host_pids: bool = True
    hierarchies: tuple[str, ...] = (UNIFIED,)
    roots: Mapping[str, str] = {}


class DaemonHome(Frozen):
    """The home of a daemon. roots: host root cgroups to join, v2 first; in v2 it gets one of its own
    below. reason: why it is not better, a clause.
    """

    kind: HomeKind
    roots: tuple[str, ...] = ()
    unified: bool = False
    reason: str = ""


def choose_home(found: Surroundings, choice: HomeChoice = HomeChoice.AUTO) -> DaemonHome:
    """The home of a daemon. Raises Unsupported if it is to be a unit, and cannot be one."""
    if choice is not HomeChoice.POD and not found.no_systemd:
        return DaemonHome(HomeKind.UNIT)
    if choice is HomeChoice.SYSTEMD:
        raise Unsupported(
            f"MPS daemons are to be units of the node's systemd, and {found.no_systemd}",
            "give the helper what it lacks, or --mps-daemons=pod",
        )
    if not found.contained:
        root = found.roots.get(UNIFIED)
        return DaemonHome(HomeKind.SESSION) if root is None else DaemonHome(HomeKind.CGROUP, (root,), True)
    if not found.host_pids:
        return DaemonHome(HomeKind.CONTAINER, reason="it is in the container's pid namespace, not the host's")
    if missing := [name for name in found.hierarchies if name not in found.roots]:
        which = ", ".join(name or "v2" for name in missing)
        reason = f"the host's root cgroup cannot be written from here (hierarchy {which})"
        return DaemonHome(HomeKind.CONTAINER, reason=reason)
    names = sorted(found.hierarchies)  # the name of v2 is the first
    return DaemonHome(HomeKind.CGROUP, tuple(found.roots[name] for name in names), names[0] == UNIFIED)


def bound_to(home: DaemonHome, *, contained: bool, left_in: str = "") -> str:
    """A sentence if the daemon ends with what started it; empty if it does not, or that is not known.

    left_in: the cgroup or unit that it was to join and is not in; empty: it is where it was to be.
    """
    if home.kind is HomeKind.CONTAINER:
        return f"the daemon ends with this container: {home.reason}"
    if not left_in:
        return ""
    what = "container" if contained else "service"
    return f"the daemon ends with this {what}: it could not be moved to {left_in}"

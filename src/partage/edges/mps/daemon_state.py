"""The state of one control daemon: from its directory, from /proc, and from its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from msgspec import field
from msgspec.structs import replace

from partage.edges.host.file_lock import is_locked
from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.control_v3 import ControlV3
from partage.edges.mps.daemon_logs import empty_full_pipe, last_line
from partage.edges.mps.directories import full_directories
from partage.edges.mps.holders import Holders, Programs
from partage.edges.mps.paths import DaemonPaths
from partage.edges.mps.processes import ProcessTable
from partage.edges.mps.record import (
    CLIENTS,
    COMMANDS,
    DaemonIdentity,
    DaemonRecord,
    DirectoryKind,
    changed,
    changed_slots,
    load_record,
)
from partage.errors import DaemonError, HardwareError
from partage.model.ids import GpuUuid
from partage.model.mps import (
    SERVER,
    ClientLimits,
    ConnectedClient,
    DaemonPhase,
    DaemonState,
    MpsServer,
    ServerStatus,
)
from partage.values import Frozen

DaemonControl = ControlV2 | ControlV3
"""The control of a daemon in version 2 or 3 of the interface."""


class FoundDaemon(Frozen):
    """What is known before the daemon is queried.

    record: None if there is no readable record. protocol: version of the interface that the daemon uses, 2
    if none runs. doubt: which processes work in its directory although none of them is known to be the
    daemon, a sentence; none of them is ended. orphans: servers that have lost their daemon. changed: as
    ``sockets.changed``. outdated, full: as in ``DaemonState``.
    """

    paths: DaemonPaths
    record: DaemonRecord | None
    identity: DaemonIdentity | None
    protocol: int = 2
    doubt: str = ""
    orphans: tuple[DaemonIdentity, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)
    outdated: bool = False
    full: str = ""

    @property
    def unheard(self) -> str:
        """Why commands may not reach it, but somebody else; empty: they do."""
        made = self.record.sockets if self.record else {}
        return self.changed.get(COMMANDS if COMMANDS in made else CLIENTS, "")

    @property
    def gpu(self) -> GpuUuid | None:
        """The GPU of the daemon; which one a MIG device is part of, only a record says."""
        if self.record:
            return self.record.spec.gpu
        device = self.paths.device
        return GpuUuid(device) if device.startswith("GPU-") else None


def find_daemon(
    paths: DaemonPaths, processes: ProcessTable, programs: Callable[[], Programs], *, own_mounts: bool = False
) -> FoundDaemon:
    """The daemon that was recorded at its start, or the only process that can be it. Blocking.

    own_mounts: whether its directories are to be file systems of their own.
    """
    record = load_record(paths.record)
    full = full_directories(paths)
    identity = record.identity if record and record.spec.device == paths.device else None
    if identity is None or not processes.lives(identity):
        found = processes.holders(paths, programs())
        if len(found.daemons) != 1:
            return FoundDaemon(paths, record, None, doubt=_doubt(found), orphans=found.servers, full=full)
        identity = found.daemons[0]
    made = record.sockets if record and record.identity == identity else {}
    return FoundDaemon(
        paths,
        record,
        identity,
        processes.protocol(identity.pid),
        changed=changed(paths, made),
        outdated=own_mounts and (record is None or record.directories is DirectoryKind.OLD),
        full=full,
    )


def _doubt(found: Holders) -> str:
    which = ", ".join(str(daemon.pid) for daemon in found.daemons or found.strangers)
    if found.daemons:
        return (
            f"processes {which} may each be its control daemon: none is ended; end the wrong ones: kill PID"
        )
    if found.strangers:
        return (
            f"process {which} works in its directory, is no daemon that Partage knows, and is not ended; "
            f"end it if nobody needs it: kill {which.replace(',', '')}"
        )
    return ""


async def observe_daemon(
    daemon: FoundDaemon, control: DaemonControl, processes: ProcessTable, deadline_s: float
) -> DaemonState:
    """The state of the daemon, after at most deadline_s. Raises nothing for errors of the daemon."""
    if daemon.doubt or daemon.unheard:
        return _silent(daemon, daemon.doubt or daemon.unheard)
    if daemon.identity is None:
        return await asyncio.to_thread(_absent, daemon)
    try:
        async with asyncio.timeout(deadline_s):
            servers = await list_servers(control, processes)
            limits = await control.limits(daemon.record.spec, servers) if daemon.record else ClientLimits()
            slots = await _open_slots(daemon, control)
    except TimeoutError:
        reason = f"the control daemon did not answer within {deadline_s:g} s"
    except (DaemonError, HardwareError) as error:
        if not await asyncio.to_thread(processes.lives, daemon.identity):
            return await asyncio.to_thread(_absent, replace(daemon, identity=None))
        reason = str(error)
    else:
        state = await asyncio.to_thread(state_from_reply, daemon, processes, servers, limits)
        spoilt = await asyncio.to_thread(changed_slots, daemon.paths, daemon.record) if daemon.record else ()
        return replace(state, open_slots=slots, changed_slots=spoilt)
    if await asyncio.to_thread(empty_full_pipe, daemon.paths, processes.descriptors(daemon.identity)):
        return _silent(daemon, f"{reason}; its pipe/log was full, which stops it, and has been emptied")
    others = await asyncio.to_thread(processes.connected, daemon.identity)
    return _silent(daemon, f"{reason}; {_in_the_way(others)}" if others else reason)


async def _open_slots(daemon: FoundDaemon, control: DaemonControl) -> tuple[str, ...]:
    if daemon.record is None or not isinstance(control, ControlV3):
        return ()
    return await control.open_slots(daemon.record.spec)


def _in_the_way(others: tuple[int, ...]) -> str:
    """A daemon serves one connection after the other, and waits for each as long as it likes."""
    pids = " ".join(map(str, others))
    return (
        f"process {pids.replace(' ', ', ')} has a connection to it and may keep all others out; end it if "
        f"nobody needs it: kill {pids}"
    )


def state_from_reply(
    daemon: FoundDaemon, processes: ProcessTable, servers: tuple[MpsServer, ...], limits: ClientLimits
) -> DaemonState:
    """The state of a daemon that has replied. Blocking."""
    assert daemon.identity is not None
    missing = processes.missing_program(daemon.identity.pid)
    phase, reason = _judge(daemon, servers, limits, missing)
    multi_user = processes.multi_user(daemon.identity.pid)
    known = replace(_silent(daemon, reason), phase=phase, multi_user=multi_user)
    return replace(known, servers=servers, limits=limits)


def _silent(daemon: FoundDaemon, reason: str) -> DaemonState:
    pid = daemon.identity.pid if daemon.identity else None
    bound_to = daemon.record.bound_to if daemon.record else ""
    return DaemonState(
        daemon.gpu,
        daemon.paths.device,
        DaemonPhase.SILENT,
        pid=pid,
        reason=reason,
        bound_to=bound_to,
        set_ns=daemon.record.set_ns if daemon.record else 0,
        outdated=daemon.outdated,
        full=daemon.full,
    )


async def list_servers(control: DaemonControl, processes: ProcessTable) -> tuple[MpsServer, ...]:
    """The servers with their clients, completed from /proc."""
    return await asyncio.to_thread(_known, await control.listed(), processes)


def _known(servers: tuple[MpsServer, ...], processes: ProcessTable) -> tuple[MpsServer, ...]:
    return tuple(
        replace(
            server,
            uid=processes.owner(server.pid) if server.uid is None else server.uid,
            clients=_named(processes, server.clients),
        )
        for server in servers
    )


def _named(processes: ProcessTable, clients: tuple[ConnectedClient, ...]) -> tuple[ConnectedClient, ...]:
    return tuple(
        replace(
            client,
            namespace_pid=processes.namespace_pid(client.pid),
            command=client.command or processes.command(client.pid),
        )
        for client in clients
    )


def has_named_server(servers: tuple[MpsServer, ...]) -> bool:
    """Whether the server named SERVER is among them."""
    return any(server.name == SERVER for server in servers)


def _judge(
    daemon: FoundDaemon, servers: tuple[MpsServer, ...], limits: ClientLimits, missing: str
) -> tuple[DaemonPhase, str]:
    """missing: why the daemon cannot run another server; empty: it can."""
    faults = [server for server in servers if server.status is ServerStatus.FAULT]
    if faults and not any(server.clients for server in servers):
        reason = f"server {faults[0].pid} is faulty although it has no clients left"
        return DaemonPhase.STARTING, f"{reason}: the daemon has to be replaced"
    if faults:
        return DaemonPhase.FAULT, _fault(faults[0])
    if daemon.record is None:
        return DaemonPhase.STARTING, "there is no record of how this daemon was started"
    if daemon.changed:
        return DaemonPhase.STARTING, "; ".join(daemon.changed.values())
    if daemon.record.spec.limits.apart and not has_named_server(servers):
        return (
            DaemonPhase.STARTING,
            "its server is gone: new clients run without MPS, if the compute mode allows that",
        )
    if limits != daemon.record.spec.limits:
        return DaemonPhase.STARTING, f"it allows {limits}, but should allow {daemon.record.spec.limits}"
    if missing and not any(server.clients for server in servers):
        return DaemonPhase.STARTING, f"it cannot run a server and has to be replaced: {missing}"
    if missing:
        return DaemonPhase.SERVING, f"it is replaced once it has no clients: {missing}"
    return DaemonPhase.SERVING, daemon.record.remark


def _fault(server: MpsServer) -> str:
    count = len(server.clients)
    waits = "its last client goes" if count == 1 else f"all its {count} clients have gone"
    return (
        f"a client's fatal fault hit all clients of server {server.pid}; it takes no new ones until {waits}"
    )


def left_servers(servers: Iterable[DaemonIdentity]) -> str:
    """Why servers that have lost their daemon are left alone."""
    pids = " ".join(str(server.pid) for server in servers)
    return (
        f"its control daemon has ended, and server {pids} still runs: its clients may be working, so it is "
        f"replaced when nobody holds a share of the GPU; or end it now: kill {pids}"
    )


def _absent(daemon: FoundDaemon) -> DaemonState:
    limits = daemon.record.spec.limits if daemon.record else ClientLimits()
    if daemon.orphans:
        return replace(_silent(daemon, left_servers(daemon.orphans)), limits=limits)
    known = DaemonState(daemon.gpu, daemon.paths.device, DaemonPhase.DEAD, limits=limits, full=daemon.full)
    identity = daemon.record.identity if daemon.record else None
    if identity is None and is_locked(daemon.paths.lock):
        return replace(known, phase=DaemonPhase.STARTING, reason="it is being started")
    if identity is None:
        return replace(known, reason="it was never seen running: the process that started it has ended")
    last = last_line(daemon.paths.log / "control.log")
    return replace(known, reason=f"the control daemon (pid {identity.pid}) is gone; its log ends: {last}")

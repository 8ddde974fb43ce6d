"""How one control daemon is: what its directory, /proc and the daemon itself say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from partage.edges.mps.control import Control, Silence
from partage.edges.mps.locks import is_held
from partage.edges.mps.paths import DaemonPaths
from partage.edges.mps.processes import Processes
from partage.edges.mps.record import Identity, Record, load
from partage.edges.mps.starting import tail
from partage.errors import DaemonError, HardwareError
from partage.model.mps import Client, DaemonSpec, DaemonState, Limits, MpsServer, Phase, ServerStatus


@dataclass(frozen=True, slots=True)
class Found:
    """What is there, before the daemon is asked. record: None where nothing readable was written down."""

    paths: DaemonPaths
    record: Record | None
    identity: Identity | None

    @property
    def spec(self) -> DaemonSpec:
        """What it was asked to be, as far as that is known."""
        return (
            self.record.spec if self.record else DaemonSpec(gpu=self.paths.device, device=self.paths.device)
        )


def find(paths: DaemonPaths, processes: Processes) -> Found:
    """Look at a daemon's directory. Blocking."""
    return Found(paths, load(paths.record), processes.daemon(paths))


async def state(found: Found, control: Control, processes: Processes, deadline_s: float) -> DaemonState:
    """How it is; at most deadline_s. Raises nothing for what the daemon does or does not do."""
    if found.identity is None:
        return await asyncio.to_thread(_absent, found)
    try:
        async with asyncio.timeout(deadline_s):
            servers = await ask_servers(control, processes)
            limits = await ask_limits(control, found.spec)
    except TimeoutError:
        return _silent(found, f"the control daemon did not answer within {deadline_s:g} s")
    except (DaemonError, HardwareError) as error:
        if not await asyncio.to_thread(processes.lives, found.identity):
            return await asyncio.to_thread(_absent, replace(found, identity=None))
        return _silent(found, str(error))
    return await asyncio.to_thread(answered, found, processes, servers, limits)


def answered(
    found: Found, processes: Processes, servers: tuple[MpsServer, ...], limits: Limits
) -> DaemonState:
    """The state of a daemon that answered this. Blocking."""
    assert found.identity is not None
    phase, reason = _judge(found, servers, limits)
    multi_user = processes.multi_user(found.identity.pid)
    known = replace(_silent(found, reason), phase=phase, multi_user=multi_user)
    return replace(known, servers=servers, limits=limits)


def _silent(found: Found, reason: str) -> DaemonState:
    pid = found.identity.pid if found.identity else None
    return DaemonState(found.spec.gpu, found.paths.device, Phase.SILENT, pid=pid, reason=reason)


async def ask_servers(control: Control, processes: Processes) -> tuple[MpsServer, ...]:
    """The servers with their clients. One that ends between two questions is left out."""
    pids = await control.servers()
    clients = await control.clients(pids)
    found = []
    for pid in pids:
        owner = await asyncio.to_thread(processes.owner, pid)
        status = await _status(control, pid)
        if status is not None:
            own = await asyncio.to_thread(_named, processes, clients.get(pid, ()))
            found.append(MpsServer(pid, owner, status, own))
    return tuple(found)


async def ask_limits(control: Control, spec: DaemonSpec) -> Limits:
    """The limits that were asked for, as the daemon has them; the others are not asked after."""
    wanted_bytes = spec.memory_bytes
    memory = None if wanted_bytes is None else await control.memory_limit(wanted_bytes)
    threads = None if spec.threads_percent is None else await control.threads_limit()
    return Limits(memory, threads)


def wanted_limits(spec: DaemonSpec) -> Limits:
    """What ``ask_limits`` is to find."""
    return Limits(spec.memory_bytes, spec.threads_percent)


async def _status(control: Control, server: int) -> ServerStatus | None:
    """None: it has ended since it was listed."""
    try:
        status = await control.status(server)
    except Silence:
        raise
    except DaemonError:
        if server in await control.servers():
            raise
        return None
    if status is ServerStatus.UNKNOWN and server not in await control.servers():
        return None
    return status


def _named(processes: Processes, clients: tuple[Client, ...]) -> tuple[Client, ...]:
    return tuple(
        replace(
            client,
            namespace_pid=processes.namespace_pid(client.pid),
            command=client.command or processes.command(client.pid),
        )
        for client in clients
    )


def _judge(found: Found, servers: tuple[MpsServer, ...], limits: Limits) -> tuple[Phase, str]:
    faults = [server for server in servers if server.status is ServerStatus.FAULT]
    if faults:
        return Phase.FAULT, _fault(faults[0])
    if found.record is None:
        return Phase.STARTING, "nothing is written down of what this daemon was asked to be"
    if limits != wanted_limits(found.record.spec):
        return Phase.STARTING, f"it allows {limits}, and was asked for {wanted_limits(found.record.spec)}"
    return Phase.SERVING, found.record.remark


def _fault(server: MpsServer) -> str:
    count = len(server.clients)
    waits = "its last client goes" if count == 1 else f"all its {count} clients have gone"
    return (
        f"a client's fatal fault hit all clients of server {server.pid}; it takes no new ones until {waits}"
    )


def _absent(found: Found) -> DaemonState:
    known = DaemonState(found.spec.gpu, found.paths.device, Phase.DEAD)
    identity = found.record.identity if found.record else None
    if identity is None and is_held(found.paths.lock):
        return replace(known, phase=Phase.STARTING, reason="it is being started")
    if identity is None:
        return replace(known, reason="it was never seen running: whoever started it was ended")
    last = tail(found.paths.log / "control.log")
    return replace(known, reason=f"the control daemon (pid {identity.pid}) is gone; its log ends: {last}")

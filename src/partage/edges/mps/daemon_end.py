"""Ends a daemon, and removes what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from partage.edges.mps import directories, unit_daemon
from partage.edges.mps.access import DaemonAccess
from partage.edges.mps.daemon_state import DaemonControl, FoundDaemon, list_servers
from partage.edges.mps.paths import DaemonPaths
from partage.edges.mps.processes import kill_all, wait_until, wait_until_gone
from partage.edges.mps.record import DaemonIdentity
from partage.errors import DaemonError, GpuInUse, HardwareError
from partage.model.gpu_use import UsersOf
from partage.model.ids import DeviceUuid
from partage.model.mps import MpsServer

_ADVICE = "end the clients, or stop it by force, which ends their work on the GPU"


async def quit_daemon(access: DaemonAccess, daemon: FoundDaemon, users: UsersOf | None = None) -> None:
    """Stop a daemon that has no clients. Raises GpuInUse, DaemonError.

    users: asked about a daemon that does not answer, and so cannot say that it has no clients; if it names
    nobody, the daemon is ended all the same. None: such a daemon stays.
    """
    assert daemon.identity is not None
    if daemon.unheard:  # nothing that is said there is its own word
        if users is None:
            raise DaemonError(f"the MPS daemon of {daemon.paths.device}: {daemon.unheard}", _ADVICE)
        await _kill_silent(access, daemon, daemon.identity, users)
        return
    control = access.control(daemon)
    try:
        servers = await _ready_servers(access, control)
        clients = [client for server in servers for client in server.clients]
        if not clients:
            # The daemon waits for a client that came meanwhile, and takes no new ones.
            await control.quit(access.deadlines.stop_s)
    except (DaemonError, HardwareError):
        if not await asyncio.to_thread(access.processes.lives, daemon.identity):
            return  # it has ended meanwhile
        if users is None:
            raise
        await _kill_silent(access, daemon, daemon.identity, users)
        return
    if clients:
        names = tuple(str(client) for client in clients)
        raise GpuInUse(f"the MPS daemon of {daemon.paths.device} has {', '.join(names)}", _ADVICE, uses=names)
    if not await wait_until_gone(access.processes, daemon.identity, access.deadlines.stop_s):
        raise DaemonError(
            f"the MPS daemon of {daemon.paths.device} was told to quit and is still running", _ADVICE
        )


async def _ready_servers(access: DaemonAccess, control: DaemonControl) -> tuple[MpsServer, ...]:
    """The servers, once all of them say who their clients are. Raises DaemonError.

    While one starts, ``quit`` does not return (seen with 535, 550 and 555), and the daemon takes no clients.
    """
    servers: tuple[MpsServer, ...] = ()

    async def are_ready() -> bool:
        nonlocal servers
        servers = await list_servers(control, access.processes)
        return all(server.is_ready for server in servers)

    if not await wait_until(are_ready, access.deadlines.stop_s):
        late = ", ".join(str(server.pid) for server in servers if not server.is_ready)
        raise DaemonError(f"MPS server {late} is not ready, so nobody knows whether it has clients", _ADVICE)
    return servers


async def force_quit(access: DaemonAccess, daemon: FoundDaemon) -> None:
    """Stop a daemon, even with clients, and even if it does not answer."""
    if daemon.identity is None:
        return
    if not daemon.unheard:
        with contextlib.suppress(DaemonError, HardwareError):  # then signals are sent
            await access.control(daemon).quit_by_force()
            await wait_until_gone(access.processes, daemon.identity, access.deadlines.stop_s)
    await _kill(access, daemon.identity)


async def _kill_silent(
    access: DaemonAccess, daemon: FoundDaemon, identity: DaemonIdentity, users: UsersOf
) -> None:
    servers = await asyncio.to_thread(access.processes.children, identity)
    await refuse_users(daemon.paths.device, (identity, *servers), users)
    await _kill(access, identity)


async def refuse_users(device: DeviceUuid, ended: Iterable[DaemonIdentity], users: UsersOf) -> None:
    """Raises GpuInUse if anybody else uses the device: they may be clients of those that are to be ended."""
    if names := await users(device, {identity.pid for identity in ended}):
        pids = ", ".join(str(identity.pid) for identity in ended)
        raise GpuInUse(
            f"the MPS daemon of {device} cannot say who its clients are, and {', '.join(names)} may be one: "
            f"process {pids} is not ended",
            "end them, or end it all the same: kill PID",
            uses=names,
        )


async def _kill(access: DaemonAccess, identity: DaemonIdentity) -> None:
    """End a daemon, and its servers, by their pids."""
    servers = await asyncio.to_thread(access.processes.children, identity)
    await kill_all(access.processes, (identity, *servers), access.deadlines.answer_s)


async def remove_all(access: DaemonAccess, daemon: FoundDaemon) -> None:
    """Remove everything of a daemon that has ended."""
    await _clean_up(access, daemon, directories.remove_directories)


async def remove_files(access: DaemonAccess, daemon: FoundDaemon) -> None:
    """Remove everything except the directories, which running containers have mounted."""
    await _clean_up(access, daemon, directories.empty_directories)


async def _clean_up(access: DaemonAccess, daemon: FoundDaemon, remove: Callable[[DaemonPaths], None]) -> None:
    left = await access.find(daemon.paths)
    if left.doubt:
        raise DaemonError(
            f"the files of the MPS daemon of {daemon.paths.device} are not removed: {left.doubt}"
        )
    await kill_all(access.processes, left.orphans, access.deadlines.answer_s)
    await unit_daemon.stop_unit(access.host, daemon.paths, access.deadlines.answer_s)
    # Before the directories: who is killed in between leaves a cgroup that nobody would know of.
    await asyncio.to_thread(access.host.remove_cgroup, daemon.paths)
    await asyncio.to_thread(remove, daemon.paths)

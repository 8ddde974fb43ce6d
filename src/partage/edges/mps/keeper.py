"""Manages the control daemons of a node: starts, inspects and stops them. They keep running without it.

It has no state: everything is read from the run directory, from /proc, or from the daemons. So a new
process can take over after an upgrade or a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from partage.edges.mps.access import DaemonAccess, DaemonDeadlines
from partage.edges.mps.control_v3 import ControlV3
from partage.edges.mps.daemon_end import force_quit, quit_daemon, refuse_users, remove_all, remove_files
from partage.edges.mps.daemon_logs import cut_logs
from partage.edges.mps.daemon_start import DaemonStart
from partage.edges.mps.daemon_state import (
    DaemonControl,
    FoundDaemon,
    has_named_server,
    left_servers,
    list_servers,
)
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.locks import hold_lock
from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.edges.mps.processes import wait_until
from partage.edges.mps.record import changed_slots
from partage.errors import DaemonError, GpuInUse, NotFound
from partage.model.gpu_use import UsersOf, nobody
from partage.model.ids import DeviceUuid
from partage.model.mps import DaemonPhase, DaemonSpec, DaemonState, MpsNamespace, MpsServer, closed_slot

_STARTS = 2
"""A daemon whose first server started before the limits were set, and is idle, is started once more."""


class MpsKeeper:
    """The daemons below one run directory. Implements ``edges.hardware.port.DaemonKeeper``."""

    def __init__(
        self,
        run_dir: Path,
        driver_root: Path = Path("/"),
        *,
        driver_on_node: Path | None = None,
        host: DaemonHost | None = None,
        deadlines: DaemonDeadlines | None = None,
    ) -> None:
        driver = DriverFiles(driver_root, driver_on_node)
        self._access = DaemonAccess(run_dir, driver, host or DaemonHost(), deadlines or DaemonDeadlines())
        self._start = DaemonStart(self._access)

    async def start(self, spec: DaemonSpec) -> DaemonState:
        access = self._access
        paths = DaemonPaths.of(access.run_dir, spec.device)
        async with hold_lock(paths.lock, access.deadlines.lock_s):
            daemon = await _without_servers(access, paths)
            control = access.control(daemon)
            if daemon.identity is not None and await _matches(daemon, spec, control):
                now = await self._start.set_and_verify(daemon, control)
                if now.phase is not DaemonPhase.STARTING:
                    return now
            clean_up = remove_files if paths.home.is_dir() else remove_all
            for _ in range(_STARTS):
                now = await self._start.replace_daemon(spec, daemon, clean_up)
                if now.phase is not DaemonPhase.STARTING:
                    return now
                daemon = await access.find(paths)
            raise DaemonError(f"the MPS daemon of {spec.device} does not become ready: {now.reason}")

    async def stop(self, device: DeviceUuid, *, force: bool = False, users: UsersOf = nobody) -> None:
        access = self._access
        paths = access.known(device)
        if paths is None:
            return
        async with hold_lock(paths.lock, access.deadlines.lock_s):
            daemon = await access.find(paths)
            if daemon.identity is not None:
                await (force_quit(access, daemon) if force else quit_daemon(access, daemon, users))
            elif daemon.orphans and not force:
                await refuse_users(device, daemon.orphans, users)
            await remove_all(access, daemon)

    async def states(self) -> tuple[DaemonState, ...]:
        homes = await asyncio.to_thread(self._access.homes)
        daemons = tuple(await asyncio.gather(*(self._access.state(paths) for paths in homes)))
        await asyncio.to_thread(_cut_logs, homes)
        return daemons

    def pipes(self) -> dict[DeviceUuid, Path]:
        return {paths.device: paths.pipe for paths in self._access.homes() if paths.pipe.is_dir()}

    async def limit(self, device: DeviceUuid, namespace: MpsNamespace) -> None:
        access = self._access
        paths = access.known(device)
        if paths is None:
            raise NotFound(f"there is no MPS daemon of {device}")
        async with hold_lock(paths.lock, access.deadlines.lock_s):
            daemon = await access.find(paths)
            control = access.control(daemon)
            if daemon.identity is None or daemon.doubt or daemon.unheard:
                why = daemon.doubt or daemon.unheard or "it does not run"
                raise NotFound(f"the MPS daemon of {device} takes no limits: {why}")
            if not isinstance(control, ControlV3):
                raise NotFound(f"the MPS daemon of {device} has no namespaces")
            opens = namespace != closed_slot(namespace.name)
            if opens and namespace.name in await asyncio.to_thread(_changed_slots, daemon):
                raise DaemonError(
                    f"the socket of {namespace.name} of the MPS daemon of {device} was changed by who had it",
                    "the daemon is started again as soon as nobody holds a share of its GPU",
                )
            if await control.namespace(namespace) is None:
                raise NotFound(f"the MPS daemon of {device} has no namespace {namespace.name}")
            await control.set_namespace(namespace)
            if (found := await control.namespace(namespace)) != namespace:
                raise DaemonError(
                    f"the MPS daemon of {device} was told {namespace}, and allows {found}",
                    "a daemon ignores limits that it considers invalid",
                )

    async def terminate(self, device: DeviceUuid, server_pid: int, client_pid: int) -> None:
        access = self._access
        paths = access.known(device)
        daemon = await access.find(paths) if paths is not None else None
        if daemon is None or daemon.identity is None:
            raise NotFound(f"there is no MPS daemon of {device}")
        control = access.control(daemon)

        async def has_gone() -> bool:
            return not _serves(await list_servers(control, access.processes), server_pid, client_pid)

        if await has_gone():
            raise NotFound(f"server {server_pid} of {device} has no client {client_pid}")
        await control.terminate(server_pid, client_pid, access.deadlines.stop_s)
        if not await wait_until(has_gone, access.deadlines.stop_s):
            raise DaemonError(
                f"client {client_pid} was to be terminated, and server {server_pid} still has it",
                "a client that ignores this may have to be killed, which can make the server fail",
            )


def _changed_slots(daemon: FoundDaemon) -> tuple[str, ...]:
    return changed_slots(daemon.paths, daemon.record) if daemon.record else ()


def _cut_logs(homes: Iterable[DaemonPaths]) -> None:
    """After each look: what it has read is what is let go."""
    for paths in homes:
        cut_logs(paths)


async def _without_servers(access: DaemonAccess, paths: DaemonPaths) -> FoundDaemon:
    """What is known of a daemon, once servers that have lost theirs have ended: they do so by themselves, or
    their clients are still working. Raises DaemonError, GpuInUse.
    """
    daemon = await access.find(paths)
    if daemon.doubt or daemon.unheard:
        raise DaemonError(
            f"the MPS daemon of {paths.device} is not started: {daemon.doubt or daemon.unheard}"
        )

    async def have_ended() -> bool:
        nonlocal daemon
        daemon = await access.find(paths)
        return not daemon.orphans

    if daemon.orphans and not await wait_until(have_ended, access.deadlines.answer_s):
        uses = tuple(f"MPS server (pid {server.pid})" for server in daemon.orphans)
        raise GpuInUse(f"{paths.device}: {left_servers(daemon.orphans)}", uses=uses)
    return daemon


async def _matches(daemon: FoundDaemon, spec: DaemonSpec, control: DaemonControl) -> bool:
    """Whether the daemon only has to be verified. A named server that is gone is not started again by the
    daemon.
    """
    if daemon.record is None or daemon.record.spec != spec:
        return False
    return not isinstance(control, ControlV3) or has_named_server(await control.listed())


def _serves(servers: Iterable[MpsServer], server_pid: int, client_pid: int) -> bool:
    return any(
        client.pid == client_pid
        for server in servers
        if server.pid == server_pid
        for client in server.clients
    )

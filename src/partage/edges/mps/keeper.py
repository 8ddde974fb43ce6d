"""Manages the control daemons of a node: starts, inspects and stops them. They keep running without it.

It has no state: everything is read from the run directory, from /proc, or from the daemons. So a new
process can take over after an upgrade or a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from partage.edges.mps import directories, record, starting, unit_daemon
from partage.edges.mps.control_v2 import ControlV2, limits_environment
from partage.edges.mps.control_v3 import OPTIONS, ControlV3, configuration_file
from partage.edges.mps.daemon_state import (
    DaemonControl,
    FoundDaemon,
    find_daemon,
    has_named_server,
    list_servers,
    observe_daemon,
    state_from_reply,
)
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.locks import hold_lock
from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.edges.mps.processes import ProcessTable
from partage.edges.mps.program import DEADLINE_S
from partage.edges.mps.record import DaemonIdentity, DaemonRecord
from partage.edges.mps.stopping import in_thread, kill, kill_orphans, wait_until, wait_until_gone
from partage.errors import DaemonError, GpuInUse, HardwareError, NotFound, Unsupported
from partage.model.daemon_home import DaemonHome, HomeKind
from partage.model.ids import DeviceUuid
from partage.model.mps import (
    MULTI_USER_OPTIONS,
    SERVER,
    ClientLimits,
    DaemonPhase,
    DaemonSpec,
    DaemonState,
    MpsServer,
    ServerStatus,
    is_device_uuid,
)
from partage.values import Frozen

_STARTS = 2
"""A daemon whose first server started before the limits were set, and is idle, is started once more."""

_ADVICE = "end the clients, or stop it by force, which ends their work on the GPU"


class DaemonDeadlines(Frozen):
    """Seconds for each part.

    answer_s: one command, and all queries for the state of one daemon.
    start_s:  until the control program has started its daemon.
    probe_s:  until a server runs: it creates a context on the GPU, which takes seconds without persistence
    mode.
    stop_s:   until a daemon has ended after quit, and after SIGTERM.
    lock_s:   for a step of another process on the same daemon.
    """

    answer_s: float = DEADLINE_S
    start_s: float = 15.0
    probe_s: float = 15.0
    stop_s: float = 10.0
    lock_s: float = 30.0


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
        self._run_dir = run_dir
        self._driver = DriverFiles(driver_root, driver_on_node)
        self._host = host or DaemonHost()
        self._deadlines = deadlines or DaemonDeadlines()
        self._processes = ProcessTable(self._host.proc)

    async def start(self, spec: DaemonSpec) -> DaemonState:
        paths = DaemonPaths.of(self._run_dir, spec.device)
        async with hold_lock(paths.lock, self._deadlines.lock_s):
            found = await self._find(paths)
            control = self._control(found)
            if found.identity is not None and await self._matches(found, spec, control):
                now = await self._set_and_verify(found, control)
                if now.phase is not DaemonPhase.STARTING:
                    return now
            end = self._empty if paths.home.is_dir() else self._clear
            for _ in range(_STARTS):
                now = await self._replace(spec, found, end)
                if now.phase is not DaemonPhase.STARTING:
                    return now
                found = await self._find(paths)
            raise DaemonError(f"the MPS daemon of {spec.device} does not become ready: {now.reason}")

    async def stop(self, device: DeviceUuid, *, force: bool = False) -> None:
        paths = self._known(device)
        if paths is None:
            return
        async with hold_lock(paths.lock, self._deadlines.lock_s):
            found = await self._find(paths)
            if found.identity is not None and force:
                await self._force(found)
            elif found.identity is not None:
                await self._quit(found, self._control(found))
            await self._clear(found)

    async def states(self) -> tuple[DaemonState, ...]:
        homes = await asyncio.to_thread(self._homes)
        return tuple(await asyncio.gather(*(self._state(paths) for paths in homes)))

    async def terminate(self, device: DeviceUuid, server_pid: int, client_pid: int) -> None:
        paths = self._known(device)
        found = await self._find(paths) if paths is not None else None
        if found is None or found.identity is None:
            raise NotFound(f"there is no MPS daemon of {device}")
        control = self._control(found)
        if not _serves(await list_servers(control, self._processes), server_pid, client_pid):
            raise NotFound(f"server {server_pid} of {device} has no client {client_pid}")
        await control.terminate(server_pid, client_pid, self._deadlines.stop_s)

        async def has_gone() -> bool:
            return not _serves(await list_servers(control, self._processes), server_pid, client_pid)

        if not await wait_until(has_gone, self._deadlines.stop_s):
            raise DaemonError(
                f"client {client_pid} was to be terminated, and server {server_pid} still has it",
                "a client that ignores this may have to be killed, which can make the server fail",
            )

    # --- look-ups ------------------------------------------------------------------------------

    def _control(self, found: FoundDaemon) -> DaemonControl:
        """The control of the running daemon, in the version that the daemon uses."""
        kind = ControlV3 if found.protocol == 3 else ControlV2
        return kind(self._driver.program, self._driver.environment(found.paths), self._deadlines.answer_s)

    def _known(self, device: DeviceUuid) -> DaemonPaths | None:
        """The paths of a device's daemon; None if it never had one."""
        paths = DaemonPaths.of(self._run_dir, device) if is_device_uuid(device) else None
        return paths if paths is not None and paths.home.is_dir() else None

    def _homes(self) -> list[DaemonPaths]:
        try:
            names = sorted(entry.name for entry in (self._run_dir / "mps").iterdir() if entry.is_dir())
        except OSError:
            return []
        return [DaemonPaths.of(self._run_dir, name) for name in names if is_device_uuid(name)]

    async def _find(self, paths: DaemonPaths) -> FoundDaemon:
        return await asyncio.to_thread(find_daemon, paths, self._processes)

    async def _state(self, paths: DaemonPaths) -> DaemonState:
        found = await self._find(paths)
        return await observe_daemon(found, self._control(found), self._processes, self._deadlines.answer_s)

    async def _matches(self, found: FoundDaemon, spec: DaemonSpec, control: DaemonControl) -> bool:
        """Whether the daemon only has to be verified. A named server that is gone is not started again by the
        daemon.
        """
        if found.record is None or found.record.spec != spec:
            return False
        return not isinstance(control, ControlV3) or has_named_server(await control.listed())

    # --- starting -----------------------------------------------------------------------------

    async def _replace(
        self, spec: DaemonSpec, found: FoundDaemon, end: Callable[[FoundDaemon], Awaitable[None]]
    ) -> DaemonState:
        """Stop the daemon that was found, and start one in its place. Raises GpuInUse.

        The new one is ``starting`` if it took clients before it had its limits.
        """
        shared = ((self._run_dir, self._run_dir), self._driver.places)
        home = await asyncio.to_thread(self._host.home, shared)
        if found.identity is not None:
            await self._quit(found, self._control(found))
        await end(found)
        return await self._start_daemon(spec, found.paths, home, end)

    async def _start_daemon(
        self,
        spec: DaemonSpec,
        paths: DaemonPaths,
        home: DaemonHome,
        end: Callable[[FoundDaemon], Awaitable[None]],
    ) -> DaemonState:
        """Start the daemon. end: called if it does not start."""
        remark = await asyncio.to_thread(
            directories.make_directories,
            paths,
            proc=self._host.proc,
            selinux=self._host.selinux,
            own_shm=self._host.own_shm,
        )
        written = DaemonRecord(spec, remark=remark)
        await self._write(paths, written)
        if spec.namespaces:
            await self._configure(paths, spec)
        try:
            await self._launch(written, paths, home)
            identity = await self._daemon_process(paths)
            deadline_s = self._deadlines.answer_s
            bound_to = await unit_daemon.bound_to(self._host, home, paths, identity.pid, deadline_s)
            written = replace(written, identity=identity, bound_to=bound_to)
            await self._write(paths, written)
            found = FoundDaemon(paths, written, written.identity, spec.protocol)
            return await self._set_and_verify(found, self._control(found))
        except (DaemonError, HardwareError):
            await self._force(await self._find(paths))
            await end(FoundDaemon(paths, written, None))
            raise

    async def _launch(self, written: DaemonRecord, paths: DaemonPaths, home: DaemonHome) -> None:
        """Run the program, with one server for all users if that is wanted, or if the program can do it.

        A named server needs that option: without it, it would refuse all users except its own.
        """
        spec = written.spec
        options = (*OPTIONS, str(paths.configuration)) if spec.namespaces else ()
        if spec.multi_user is False:
            return await self._run(written, paths, home, options)
        try:
            return await self._run(written, paths, home, (*options, MULTI_USER_OPTIONS[spec.protocol]))
        except Unsupported:
            raise
        except DaemonError:
            if spec.multi_user or spec.namespaces:
                raise
        return await self._run(written, paths, home, options)

    async def _run(
        self, written: DaemonRecord, paths: DaemonPaths, home: DaemonHome, options: tuple[str, ...]
    ) -> None:
        spec = written.spec
        limits = {} if spec.namespaces else limits_environment(spec)
        driver, deadline_s = self._driver, self._deadlines.start_s
        own_shm = self._host.own_shm and directories.is_own_shm(paths)
        if home.kind is HomeKind.UNIT:
            return await unit_daemon.start_unit(
                driver, options, limits, paths, host=self._host, own_shm=own_shm, deadline_s=deadline_s
            )
        return await starting.start_daemon(
            driver, options, limits, paths, host=self._host, home=home, own_shm=own_shm, deadline_s=deadline_s
        )

    async def _daemon_process(self, paths: DaemonPaths) -> DaemonIdentity:
        """The process of the new daemon."""
        if await wait_until(in_thread(self._processes.daemon, paths), self._deadlines.start_s):
            identity = await asyncio.to_thread(self._processes.daemon, paths)
            if identity is not None:
                return identity
        last = await asyncio.to_thread(starting.last_line, paths.log / "control.log")
        raise DaemonError(f"the MPS control daemon ended at its start: {last}")

    async def _set_and_verify(self, found: FoundDaemon, control: DaemonControl) -> DaemonState:
        """The state of a daemon after its limits were set, read back and compared. Raises DaemonError.

        In version 2 the limits apply to servers that start later; the state is ``starting`` if one has
        started before. In version 3 they are in the file that the daemon was started with, and belong to
        its server.
        """
        assert found.record is not None
        spec = found.record.spec
        if isinstance(control, ControlV3):
            servers = await self._running_servers(found.paths, control)
            limits = await _verified(control, spec)
        else:
            await control.set_limits(spec)
            await _verified(control, spec)
            servers = await self._running_servers(found.paths, control)
            limits = await control.limits(spec, servers)
        if found.record.identity != found.identity:
            await self._write(found.paths, replace(found.record, identity=found.identity))
        return await asyncio.to_thread(state_from_reply, found, self._processes, servers, limits)

    async def _running_servers(self, paths: DaemonPaths, control: DaemonControl) -> tuple[MpsServer, ...]:
        """Wait until a server runs: an error at its start would otherwise appear only with the first client.

        A named server starts with its daemon. Without multi-user the server started here belongs to this
        process's user; for a client of another user the daemon replaces it, because it is idle.
        """
        name = SERVER if isinstance(control, ControlV3) else ""
        servers = await list_servers(control, self._processes)
        if isinstance(control, ControlV2) and not servers:
            await control.start_server(os.geteuid())

        async def runs() -> bool:
            nonlocal servers
            servers = await list_servers(control, self._processes)
            ours = [server for server in servers if server.name == name]
            return bool(ours) and ours[0].status is not ServerStatus.INITIALIZING

        if (servers and not name) or await wait_until(runs, self._deadlines.probe_s):
            return servers
        log = paths.server_log if name and paths.server_log.is_file() else paths.log / "control.log"
        last = await asyncio.to_thread(starting.last_line, log)
        raise DaemonError(
            f"no MPS server of {paths.device} started: {last}",
            "the GPU may be in use without MPS, or may not support it; see server.log",
        )

    async def _write(self, paths: DaemonPaths, written: DaemonRecord) -> None:
        try:
            await asyncio.to_thread(record.save_record, paths.record, written)
        except OSError as error:
            raise DaemonError(f"{paths.record} cannot be written: {error}", "is there space left?") from error

    async def _configure(self, paths: DaemonPaths, spec: DaemonSpec) -> None:
        try:
            await asyncio.to_thread(
                paths.configuration.write_text, configuration_file(spec), encoding="ascii"
            )
        except OSError as error:
            raise DaemonError(
                f"{paths.configuration} cannot be written: {error}", "is there space left?"
            ) from error

    # --- stopping -----------------------------------------------------------------------------

    async def _quit(self, found: FoundDaemon, control: DaemonControl) -> None:
        """Stop a daemon that has no clients. Raises GpuInUse, DaemonError."""
        assert found.identity is not None
        try:
            servers = await list_servers(control, self._processes)
            clients = [client for server in servers for client in server.clients]
            if not clients:
                # The daemon waits for a client that came meanwhile, and takes no new ones.
                await control.quit(self._deadlines.stop_s)
        except DaemonError:
            if await asyncio.to_thread(self._processes.lives, found.identity):
                raise
            return  # it has ended meanwhile
        if clients:
            names = tuple(str(client) for client in clients)
            raise GpuInUse(
                f"the MPS daemon of {found.paths.device} has {', '.join(names)}", _ADVICE, uses=names
            )
        if not await wait_until_gone(self._processes, found.identity, self._deadlines.stop_s):
            raise DaemonError(
                f"the MPS daemon of {found.paths.device} was told to quit and is still running", _ADVICE
            )

    async def _force(self, found: FoundDaemon) -> None:
        """Stop a daemon, even with clients, and even if it does not answer."""
        if found.identity is None:
            return
        with contextlib.suppress(DaemonError, HardwareError):  # then signals are sent
            await self._control(found).quit_by_force()
            await wait_until_gone(self._processes, found.identity, self._deadlines.stop_s)
        await kill(self._processes, found.identity, self._deadlines.answer_s)

    async def _clear(self, found: FoundDaemon) -> None:
        """Remove everything of a daemon that has ended."""
        await self._ended(found, directories.remove_directories)

    async def _empty(self, found: FoundDaemon) -> None:
        """Remove everything except the directories, which running containers have mounted."""
        await self._ended(found, directories.empty_directories)

    async def _ended(self, found: FoundDaemon, remove: Callable[[DaemonPaths], None]) -> None:
        await kill_orphans(self._processes, found.paths, self._deadlines.answer_s)
        await unit_daemon.stop_unit(self._host, found.paths, self._deadlines.answer_s)
        await asyncio.to_thread(remove, found.paths)
        await asyncio.to_thread(self._host.remove_cgroup, found.paths)


async def _verified(control: DaemonControl, spec: DaemonSpec) -> ClientLimits:
    """The limits as the daemon reports them. Raises DaemonError if they differ from ``spec``."""
    limits = await control.limits(spec)
    if limits != spec.limits:
        raise DaemonError(
            f"the MPS daemon of {spec.device} was told {spec.limits}, and allows {limits}",
            "a daemon ignores limits that it considers invalid",
        )
    return limits


def _serves(servers: Iterable[MpsServer], server_pid: int, client_pid: int) -> bool:
    return any(
        client.pid == client_pid
        for server in servers
        if server.pid == server_pid
        for client in server.clients
    )

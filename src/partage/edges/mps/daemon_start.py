"""Puts a daemon in place: started in its directories, with limits that were read back.

What was there before is stopped first. A daemon that does not start leaves its logs, and no process.

Its process keeps running when the one that started it ends. It gets its own session and, where the host's
cgroups can be written, one of those, so that stopping the service or container does not stop it. Elsewhere
the daemon ends with the container; which of these it is, ``home`` says. A daemon that is to be a unit of
systemd is started by ``unit_daemon``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from partage.edges.host.own_task import end_group
from partage.edges.mps import directories, launch, record, unit_daemon
from partage.edges.mps.access import DaemonAccess
from partage.edges.mps.control_v2 import ControlV2, limits_environment
from partage.edges.mps.control_v3 import OPTIONS, ControlV3, configuration_file
from partage.edges.mps.daemon_end import force_quit, quit_daemon, remove_files
from partage.edges.mps.daemon_logs import LogMark, end_of_log, failed_server, last_line, read_log, shown
from partage.edges.mps.daemon_state import DaemonControl, FoundDaemon, list_servers, state_from_reply
from partage.edges.mps.holders import Programs
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.edges.mps.processes import wait_until
from partage.edges.mps.record import DaemonIdentity, DaemonRecord, answers_elsewhere, socket_ids
from partage.errors import DaemonError, HardwareError, Unsupported
from partage.model.mps import (
    MULTI_USER_OPTIONS,
    SERVER,
    ClientLimits,
    DaemonHome,
    DaemonSpec,
    DaemonState,
    HomeKind,
    MpsServer,
)

_TRIES = 3
"""So often limits are set when somebody else gives commands at the same time."""

CleanUp = Callable[[DaemonAccess, FoundDaemon], Awaitable[None]]
"""What is done with the files of a daemon that has ended."""


class DaemonStart:
    """Starts daemons, and sets and verifies their limits."""

    def __init__(self, access: DaemonAccess) -> None:
        self._access = access

    async def replace_daemon(self, spec: DaemonSpec, daemon: FoundDaemon, clean_up: CleanUp) -> DaemonState:
        """Stop the daemon that was found, and start one in its place. Raises GpuInUse.

        The new one is ``starting`` if it took clients before it had its limits.
        """
        shared = ((self._access.run_dir, self._access.run_dir), self._access.driver.places)
        home = await asyncio.to_thread(self._access.host.home, shared)
        if daemon.identity is not None:
            await quit_daemon(self._access, daemon)
        await clean_up(self._access, daemon)
        return await self._start_daemon(spec, daemon.paths, home, clean_up)

    async def _start_daemon(
        self,
        spec: DaemonSpec,
        paths: DaemonPaths,
        home: DaemonHome,
        clean_up: CleanUp,
    ) -> DaemonState:
        """Start the daemon. clean_up: called if it does not start."""
        made = await asyncio.to_thread(directories.make_directories, paths, self._access.host)
        written = DaemonRecord(spec, remark=made.remark, directories=made.kind)
        await self._write(paths, written)
        if spec.limits.apart:
            await self._configure(paths, spec)
        try:
            await self._launch(written, paths, home)
            identity = await self._daemon_process(paths)
            deadline_s = self._access.deadlines.answer_s
            bound_to = await unit_daemon.bound_to(self._access.host, home, paths, identity.pid, deadline_s)
            written = replace(written, identity=identity, bound_to=bound_to)
            await self._write(paths, written)
            daemon = FoundDaemon(paths, written, written.identity, spec.protocol)
            return await self.set_and_verify(daemon, self._access.control(daemon))
        except (DaemonError, HardwareError):
            await force_quit(self._access, await self._access.find(paths))
            if (
                written.identity is not None
            ):  # it ran: its logs say more, until it is stopped or started again
                clean_up = remove_files
            await clean_up(self._access, FoundDaemon(paths, written, None))
            raise

    async def _launch(self, written: DaemonRecord, paths: DaemonPaths, home: DaemonHome) -> None:
        """Run the program, with one server for all users if that is wanted, or if the program can do it.

        A named server needs that option: without it, it would refuse all users except its own.
        """
        spec = written.spec
        options = (*OPTIONS, str(paths.configuration)) if spec.limits.apart else ()
        if spec.multi_user is False:
            return await self._run(written, paths, home, options)
        try:
            return await self._run(written, paths, home, (*options, MULTI_USER_OPTIONS[spec.protocol]))
        except Unsupported:
            raise
        except DaemonError:
            if spec.multi_user or spec.limits.apart:
                raise
        return await self._run(written, paths, home, options)

    async def _run(
        self, written: DaemonRecord, paths: DaemonPaths, home: DaemonHome, options: tuple[str, ...]
    ) -> None:
        spec = written.spec
        limits = {} if spec.limits.apart else limits_environment(spec)
        driver, deadline_s = self._access.driver, self._access.deadlines.start_s
        own_shm = self._access.host.own_mounts and directories.is_own_shm(paths)
        if home.kind is HomeKind.UNIT:
            return await unit_daemon.start_unit(
                driver, options, limits, paths, host=self._access.host, own_shm=own_shm, deadline_s=deadline_s
            )
        return await start_daemon(
            driver,
            options,
            limits,
            paths,
            host=self._access.host,
            home=home,
            own_shm=own_shm,
            deadline_s=deadline_s,
        )

    async def _daemon_process(self, paths: DaemonPaths) -> DaemonIdentity:
        """The process of the new daemon: before it was started, nobody was in its directory."""
        daemons: tuple[DaemonIdentity, ...] = ()

        async def is_there() -> bool:
            nonlocal daemons
            found = self._access.processes.holders
            daemons = (await asyncio.to_thread(found, paths, Programs(control=None))).daemons
            return len(daemons) == 1

        if await wait_until(is_there, self._access.deadlines.start_s):
            return daemons[0]
        last = await asyncio.to_thread(last_line, paths.log / "control.log")
        raise DaemonError(f"the MPS control daemon ended at its start: {last}")

    async def set_and_verify(self, daemon: FoundDaemon, control: DaemonControl) -> DaemonState:
        """The state of a daemon after its limits were set, read back and compared. Raises DaemonError.

        In version 2 the limits apply to servers that start later; the state is ``starting`` if one has
        started before. In version 3 they are in the file that the daemon was started with, and belong to
        its server.
        """
        assert daemon.record is not None
        before = daemon.record
        spec = before.spec
        if isinstance(control, ControlV3):
            servers = await self._running_servers(daemon.paths, control)
            limits = await _verified(control, spec)
        else:
            settled = await self._set(daemon, control)
            set_ns = time.monotonic_ns()
            servers = await self._running_servers(daemon.paths, control)
            limits = await control.limits(spec, servers)
            settled = settled if limits == spec.limits else None
            daemon = replace(daemon, record=replace(daemon.record, settled=settled, set_ns=set_ns))
        assert daemon.record is not None
        if daemon.record != before or daemon.record.identity != daemon.identity or not daemon.record.sockets:
            daemon = replace(daemon, record=await self._note(daemon.paths, daemon.record, daemon.identity))
        now = await asyncio.to_thread(state_from_reply, daemon, self._access.processes, servers, limits)
        return await self._access.with_commands(daemon, now)

    async def _set(self, daemon: FoundDaemon, control: ControlV2) -> LogMark | None:
        """Set and read back the limits, and nobody else in between; the end of the log then.

        None: the log says nothing, or at the start of a daemon somebody else gives it commands all the time.
        Raises DaemonError, also if that is so later.
        """
        assert daemon.record is not None
        spec, log = daemon.record.spec, daemon.paths.log / "control.log"
        servers = await self._ready_servers(control)
        # Else a server may have taken clients without a limit, and has to show that.
        known = daemon.record.settled is not None and daemon.record.identity == daemon.identity
        again = known or await control.limits(spec, servers) == spec.limits
        others = ""
        for _ in range(_TRIES):
            before = await asyncio.to_thread(end_of_log, log)
            ours = await control.set_limits(spec, again=again)
            await _verified(control, spec)
            if before is None:
                return None
            news = await asyncio.to_thread(read_log, log, before)
            if not news.lost and (news.changes == ours or not news.asked):
                return news.end  # one that writes nothing to its log is told from a quiet one by each look
            others = next((change for change in news.changes if change not in ours), "")
        if others and known:
            raise DaemonError(
                f"somebody else keeps telling the MPS daemon of {spec.device} {shown(others)}",
                "a container whose processes are root, or any under driver branch 535, may do so",
            )
        return None

    async def _ready_servers(self, control: ControlV2) -> tuple[MpsServer, ...]:
        """The servers, once none is about to be ready: such a one takes no settings, and does not say so
        (seen with 550 and 555).
        """
        servers: tuple[MpsServer, ...] = ()

        async def are_ready() -> bool:
            nonlocal servers
            servers = await control.listed()
            return all(server.is_ready for server in servers)

        if not await wait_until(are_ready, self._access.deadlines.probe_s):
            raise DaemonError("an MPS server does not become ready", "see server.log")
        return servers

    async def _note(
        self, paths: DaemonPaths, known: DaemonRecord, identity: DaemonIdentity | None
    ) -> DaemonRecord:
        """Write down which process it is, and which sockets it has made. Raises DaemonError."""
        assert identity is not None
        made = await asyncio.to_thread(socket_ids, paths)  # before: what is exchanged later differs
        if other := await asyncio.to_thread(answers_elsewhere, paths, identity.pid):
            raise DaemonError(f"clients cannot reach the MPS daemon of {paths.device}: {other}")
        # Those of slots are the daemon's as long as it is: before, nobody has had one.
        slots = known.slot_sockets or await asyncio.to_thread(record.slot_socket_ids, paths, known.spec)
        noted = replace(known, identity=identity, sockets=made, slot_sockets=slots)
        await self._write(paths, noted)
        return noted

    async def _running_servers(self, paths: DaemonPaths, control: DaemonControl) -> tuple[MpsServer, ...]:
        """Wait until a server runs: an error at its start would otherwise appear only with the first client.

        A named server starts with its daemon. Without multi-user the server started here belongs to this
        process's user; for a client of another user the daemon replaces it, because it is idle.
        """
        name = SERVER if isinstance(control, ControlV3) else ""
        servers = await list_servers(control, self._access.processes)
        log, failed = paths.log / "control.log", ""
        before = await asyncio.to_thread(end_of_log, log)
        if isinstance(control, ControlV2) and not servers:
            await control.start_server(os.geteuid())

        async def is_known() -> bool:
            """Whether one runs, or none will."""
            nonlocal servers, failed
            servers = await list_servers(control, self._access.processes)
            if not servers and before is not None:
                failed = await asyncio.to_thread(failed_server, log, before)
            return bool(failed) or any(server.is_ready for server in servers if server.name == name)

        if await wait_until(is_known, self._access.deadlines.probe_s) and not failed:
            return servers
        own = paths.server_log if name else paths.log / "server.log"
        said = [failed, *(f"server {server.pid} is {server.status}" for server in servers)]
        said.append(await asyncio.to_thread(last_line, own, ""))
        why = "; ".join(filter(None, said)) or await asyncio.to_thread(last_line, log)
        raise DaemonError(
            f"no MPS server of {paths.device} started: {why}",
            f"the GPU may be in use without MPS, or may not support it; the logs are in {paths.log}",
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


async def _verified(control: DaemonControl, spec: DaemonSpec) -> ClientLimits:
    """The limits as the daemon reports them. Raises DaemonError if they differ from ``spec``."""
    limits = await control.limits(spec)
    if limits != spec.limits:
        raise DaemonError(
            f"the MPS daemon of {spec.device} was told {spec.limits}, and allows {limits}",
            "a daemon ignores limits that it considers invalid",
        )
    return limits


async def start_daemon(
    driver: DriverFiles,
    options: Sequence[str],
    limits: dict[str, str],
    paths: DaemonPaths,
    *,
    host: DaemonHost,
    home: DaemonHome,
    own_shm: bool,
    deadline_s: float,
) -> None:
    """Run the control program, which becomes a daemon; done when it has.

    limits: variables that only a daemon has. home: where it is to live. own_shm: the daemon sees
    ``paths.shm`` as /dev/shm.
    Raises DaemonError with the program's output, Unsupported if it cannot be run.
    """
    cgroups = await asyncio.to_thread(host.make_cgroups, home, paths)
    namespace = host.cgroup_namespace() if cgroups else ""
    shm = str(paths.shm) if own_shm else ""
    program = str(driver.program())
    surrounded = [namespace, os.pathsep.join(cgroups), shm]
    argv = [sys.executable, "-I", "-S", str(launch.__file__), *surrounded, program, "-d", *options]
    environment = driver.environment(paths) | limits | {"CUDA_VISIBLE_DEVICES": paths.device}
    # Not a pipe: the daemon keeps its standard output open, so a reader would wait for ever.
    output = paths.start_log
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=DEVNULL,
            stdout=file,
            stderr=STDOUT,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    await _finish(process, output, program, deadline_s)


async def _finish(process: Process, output: Path, program: str, deadline_s: float) -> None:
    try:
        async with asyncio.timeout(deadline_s):
            code = await process.wait()
    except TimeoutError as error:
        raise DaemonError(f"{program} did not start within {deadline_s:g} s: {last_line(output)}") from error
    finally:
        await end_group(process)
    if code == launch.FAILED:
        raise Unsupported(f"the MPS control daemon cannot be run: {last_line(output)}")
    if code:
        raise DaemonError(f"the MPS control daemon did not start ({code}): {last_line(output)}")

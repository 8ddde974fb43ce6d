"""The control daemons below one run directory: where they are, what runs there, and how to speak to them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.control_v3 import ControlV3
from partage.edges.mps.daemon_logs import Commands
from partage.edges.mps.daemon_state import DaemonControl, FoundDaemon, find_daemon, observe_daemon
from partage.edges.mps.holders import Programs, file_ids
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths, DriverFiles, homes_below
from partage.edges.mps.processes import ProcessTable
from partage.edges.mps.program import DEADLINE_S
from partage.model.ids import DeviceUuid
from partage.model.mps import CONTROL_PROGRAM, SERVER_PROGRAM, DaemonPhase, DaemonState, is_device_uuid
from partage.values import Frozen


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


class DaemonAccess:
    """Finds the daemons of one run directory and speaks to them.

    It remembers how far it has read their logs, and nothing else.
    """

    def __init__(
        self, run_dir: Path, driver: DriverFiles, host: DaemonHost, deadlines: DaemonDeadlines
    ) -> None:
        self.run_dir = run_dir
        self.driver = driver
        self.host = host
        self.deadlines = deadlines
        self.processes = ProcessTable(host.proc)
        self.commands = Commands()

    def control(self, daemon: FoundDaemon) -> DaemonControl:
        """The control of the running daemon, in the version that the daemon uses."""
        kind = ControlV3 if daemon.protocol == 3 else ControlV2
        return kind(self.driver.program, self.driver.environment(daemon.paths), self.deadlines.answer_s)

    def known(self, device: DeviceUuid) -> DaemonPaths | None:
        """The paths of a device's daemon; None if it never had one."""
        paths = DaemonPaths.of(self.run_dir, device) if is_device_uuid(device) else None
        return paths if paths is not None and paths.home.is_dir() else None

    def homes(self) -> list[DaemonPaths]:
        """The paths of all devices that have or had a daemon. Blocking."""
        return homes_below(self.run_dir)

    def programs(self) -> Programs:
        """The programs that a daemon and its servers can have. Blocking."""
        return Programs(
            file_ids(self.driver.files_of(CONTROL_PROGRAM)), file_ids(self.driver.files_of(SERVER_PROGRAM))
        )

    async def find(self, paths: DaemonPaths) -> FoundDaemon:
        """What is known of a daemon before it is queried."""
        own_mounts = self.host.own_mounts
        return await asyncio.to_thread(
            find_daemon, paths, self.processes, self.programs, own_mounts=own_mounts
        )

    async def state(self, paths: DaemonPaths) -> DaemonState:
        """What a daemon says of itself, or why it says nothing."""
        daemon = await self.find(paths)
        state = await self._observed(daemon)
        if daemon.identity is not None and state.phase is DaemonPhase.DEAD:  # it has ended meanwhile
            return await self._observed(await self.find(paths))
        return state

    async def _observed(self, daemon: FoundDaemon) -> DaemonState:
        state = await observe_daemon(daemon, self.control(daemon), self.processes, self.deadlines.answer_s)
        return await self.with_commands(daemon, state)

    async def with_commands(self, daemon: FoundDaemon, state: DaemonState) -> DaemonState:
        """Whether somebody else may have set its limits. Only version 2 can be told so by a tenant."""
        limited = (state.limits.memory_bytes, state.limits.threads_percent) != (None, None)
        answers = daemon.record is not None and state.phase not in (DaemonPhase.DEAD, DaemonPhase.SILENT)
        if not (answers and limited and daemon.protocol == 2):
            return state
        settled = daemon.record.settled if daemon.record else None
        unsettled, doubt = await asyncio.to_thread(self.commands.look, daemon.paths, settled)
        return replace(state, unsettled=unsettled, doubt=doubt)

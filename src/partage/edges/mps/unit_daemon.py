"""A control daemon as a unit of the node's systemd: started, looked at, and ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from partage.edges.mps.daemon_logs import last_line
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.edges.mps.systemd import unit_command, unit_name, write_limits
from partage.errors import DaemonError, Unsupported
from partage.model.mps import DaemonHome, HomeChoice, HomeKind


async def start_unit(
    driver: DriverFiles,
    options: Sequence[str],
    limits: Mapping[str, str],
    paths: DaemonPaths,
    *,
    host: DaemonHost,
    own_shm: bool,
    deadline_s: float,
) -> None:
    """As ``daemon_start.start_daemon``: done when the program has become a daemon."""
    systemd = await asyncio.to_thread(host.systemd)
    try:
        await asyncio.to_thread(write_limits, paths, limits)
    except OSError as error:
        raise DaemonError(f"{paths.home} cannot be written: {error}", "is there space left?") from error
    node = await asyncio.to_thread(driver.for_node, paths)
    try:
        await systemd.run_unit(unit_command(node, options, paths, own_shm=own_shm), deadline_s)
    except DaemonError as error:
        await systemd.stop(unit_name(paths.device), deadline_s)  # else it may be starting still
        text = await asyncio.to_thread(last_line, paths.start_log, "")
        raise DaemonError(f"{error.problems[0].message} {text}".strip()) from error


async def bound_to(
    host: DaemonHost, home: DaemonHome, paths: DaemonPaths, pid: int, deadline_s: float
) -> str:
    """Whether a running daemon ends with what started it, as ``DaemonHost.bound_to``."""
    unit_pid = None
    if home.kind is HomeKind.UNIT:
        systemd = await asyncio.to_thread(host.systemd)
        try:
            unit_pid = await systemd.main_pid(unit_name(paths.device), deadline_s)
        except (DaemonError, Unsupported):
            return ""  # not known
    return await asyncio.to_thread(host.bound_to, home, paths, pid, unit_pid)


async def stop_unit(host: DaemonHost, paths: DaemonPaths, deadline_s: float) -> None:
    """End what is left of the unit of a daemon that has ended, if it was one."""
    if host.choice is HomeChoice.POD:
        return
    systemd = await asyncio.to_thread(host.systemd)
    if not await asyncio.to_thread(systemd.absent):
        with contextlib.suppress(DaemonError, Unsupported):  # it has no processes that Partage knows of
            await systemd.stop(unit_name(paths.device), deadline_s)

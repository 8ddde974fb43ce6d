"""Ends the processes of a container that uses more than its share, and checks that they have ended.

An MPS client is ended by its daemon: a signal to a busy client may hang the server for all clients. What
counts is what the daemon says, whatever the driver lists the process as. Pids are reused and the daemon does
not compare, so the process is checked again just before. Other processes are ended by the helper, which
compares itself (``edges.hardware.end_process``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import StrEnum

from partage.edges.hardware.port import Hardware
from partage.errors import DaemonError, HardwareError, NotFound, Unsupported
from partage.model.cgroup import parse_cgroup
from partage.model.gpu_use import GpuProcess, ProcessKind
from partage.model.mps import DaemonState
from partage.model.step import EndClient, EndProcess
from partage.plan.serve.watchdog import Violation
from partage.values import Frozen

_AT_ONCE = 8
"""Each may take the time from SIGTERM to SIGKILL. The helper takes 32 requests at a time, not only ours."""


class EndMethod(StrEnum):
    """How a process's work on a GPU was ended: by the MPS daemon, or with the process itself."""

    CLIENT = "client"
    PROCESS = "process"


class EndResult(Frozen):
    """The result of ending a container's processes.

    how: by pid, for each process that was ended. failed: why others still run, a sentence each. Processes
    that ended by themselves are in neither.
    """

    how: Mapping[int, EndMethod]
    failed: tuple[str, ...] = ()


async def end_processes(hardware: Hardware, violation: Violation) -> EndResult:
    """End what the violation names, one container's processes on one device."""
    several = asyncio.Semaphore(_AT_ONCE)

    async def one(row: GpuProcess) -> EndMethod | HardwareError | DaemonError | None:
        async with several:
            try:
                return await _end_one(hardware, row, violation)
            except NotFound:
                return None
            except (HardwareError, DaemonError) as error:
                return error

    rows = violation.usage.processes
    outcomes = dict(zip(rows, await asyncio.gather(*map(one, rows)), strict=True))
    return EndResult(
        {row.pid: how for row, how in outcomes.items() if isinstance(how, EndMethod)},
        tuple(str(error) for error in outcomes.values() if isinstance(error, HardwareError | DaemonError)),
    )


async def _end_one(hardware: Hardware, row: GpuProcess, violation: Violation) -> EndMethod:
    """End one process. Raises NotFound if it has ended, other HardwareErrors and DaemonError if it still
    runs."""
    if row.pid in violation.clients or await _is_client(hardware, row, violation):
        return await _end_client(hardware, row)
    for step in violation.ends:
        if step.pid == row.pid:
            await hardware.perform(step)
            return EndMethod.PROCESS
    if row.kind is ProcessKind.MPS_SERVER:
        raise Unsupported(f"process {row.pid} is called a server of MPS, and may have clients")
    raise Unsupported(
        f"/proc does not say when process {row.pid} began: another process may have its pid by now"
    )


async def _end_client(hardware: Hardware, row: GpuProcess) -> EndMethod:
    """End an MPS client by its daemon. If the process then uses the GPU without the daemon, end the
    process."""
    daemons = await hardware.daemons()
    step = _end_of(row, daemons)
    if not await _find_again(hardware, row):
        raise NotFound(f"process {row.pid} does not work on the GPU any more")
    if step is None:
        raise DaemonError(f"no MPS daemon of ours has process {row.pid} for a client")
    await hardware.perform(step)
    if _end_of(row, await hardware.daemons()) is not None:
        raise DaemonError(f"MPS client {row.pid} was told to end, and still runs")
    left = await _find_again(hardware, row)
    if left is None or left.start is None or left.kind is ProcessKind.MPS_CLIENT:
        return EndMethod.CLIENT
    await hardware.perform(EndProcess(left.gpu, left.pid, left.start, parse_cgroup(left.cgroups).container))
    return EndMethod.PROCESS


async def _is_client(hardware: Hardware, row: GpuProcess, violation: Violation) -> bool:
    """Whether one of our daemons has a process for a client that the driver lists as an ordinary one."""
    ends = any(step.pid == row.pid for step in violation.ends)
    return ends and _end_of(row, await hardware.daemons()) is not None


def _end_of(row: GpuProcess, daemons: Iterable[DaemonState]) -> EndClient | None:
    """The step that ends a client; None if no daemon has it."""
    for daemon in daemons:
        there = daemon.device == row.device if row.device else daemon.gpu == row.gpu
        for server in daemon.servers if there else ():
            if any(client.pid == row.pid for client in server.clients):
                return EndClient(row.gpu, daemon.device, server.pid, row.pid)
    return None


async def _find_again(hardware: Hardware, row: GpuProcess) -> GpuProcess | None:
    """The same process, if it still uses the same device in the same container."""
    same = (row.gpu, row.device, row.pid, row.start, parse_cgroup(row.cgroups).container)
    for now in (await hardware.processes()).rows:
        if (now.gpu, now.device, now.pid, now.start, parse_cgroup(now.cgroups).container) == same:
            return now
    return None

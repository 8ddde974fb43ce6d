"""End exactly one process: SIGTERM, after a while SIGKILL, and wait until it is gone.

Pids are reused. So the process is first opened with a file descriptor (pidfd), then compared with the step,
and then signalled through that descriptor: a later process with the same pid is never signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection, Iterator

from partage.edges.hardware.host import Host
from partage.edges.host import procfs
from partage.errors import GpuInUse, NotFound, NotPermitted, Unsupported
from partage.model.cgroup import parse_cgroup
from partage.model.gpu_use import GpuProcess, ProcessKind
from partage.model.ids import ContainerId
from partage.model.step import EndProcess

GRACE_S = 10.0
"""Seconds from SIGTERM to SIGKILL: time to write a checkpoint."""

KILLED_S = 10.0
"""Seconds that a killed process may take to end: the driver frees its memory first."""


async def end_process(
    host: Host, step: EndProcess, *, grace_s: float = GRACE_S, killed_s: float = KILLED_S
) -> None:
    """End the process. Raises NotFound if it is gone or is another process than that of the step;
    NotPermitted; Unsupported; GpuInUse if it does not end because it hangs in the driver.
    """
    refuse_own_process(host, step)
    with _opened(step.pid) as descriptor:
        check_identity(host, step)
        for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, killed_s)):
            _send(descriptor, number)
            if await _ended(descriptor, limit_s):
                return
    who = f"process {procfs.name_of(host.proc, step.pid) or 'unknown'} (pid {step.pid})"
    raise GpuInUse(
        f"{who} does not end, though it was killed {killed_s:g} s ago",
        "it hangs in the driver; dmesg may say why",
        uses=(who,),
    )


def refuse_own_process(host: Host, step: EndProcess) -> None:
    """Raise NotPermitted for process 1, for this process, and for processes in the same container."""
    own = parse_cgroup(procfs.self_cgroups(host.proc)).container
    if step.pid <= 1 or step.pid in procfs.own_pids(host.proc) or (own and own == step.container):
        raise NotPermitted(f"will not {step}: it belongs to the node or to Partage itself")


def check_uses_gpu(rows: Collection[GpuProcess], step: EndProcess) -> None:
    """Raise NotFound if the process does not use the GPU, Unsupported if it uses it through MPS."""
    there = [row for row in rows if (row.gpu, row.pid) == (step.gpu, step.pid)]
    if not there:
        raise NotFound(f"cannot {step}: it does not use GPU {step.gpu}")
    if any(row.kind in (ProcessKind.MPS_CLIENT, ProcessKind.MPS_SERVER) for row in there):
        raise Unsupported(
            f"cannot {step}: a signal to an MPS client can make the server hang for all other clients",
            "use the MPS daemon's terminate_client",
        )


def check_identity(host: Host, step: EndProcess) -> None:
    """Raise NotFound if another process has the pid now, or the process is in another container."""
    start = procfs.start_of(host.proc, step.pid)
    container = parse_cgroup(procfs.cgroups_of(host.proc, step.pid)).container
    if start is None:
        raise NotFound(f"cannot {step}: there is no such process")
    check_same_process(step, start, container)


def check_same_process(step: EndProcess, start: int | None, container: ContainerId) -> None:
    """Raise NotFound for a process that is not the one of the step. start, container: what it has."""
    if start != step.start:
        raise NotFound(f"cannot {step}: another process has this pid now")
    if not container or container != step.container:
        raise NotFound(f"cannot {step}: it is in {container[:12] or 'no container'}")


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[int]:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise NotFound(f"there is no process {pid}") from error
    except OSError as error:
        raise Unsupported(
            f"process {pid} cannot be opened ({error.strerror}), and its pid may be reused",
            "a kernel of 5.3 or later is needed",
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _send(descriptor: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        try:
            signal.pidfd_send_signal(descriptor, number)
        except PermissionError as error:
            raise NotPermitted("the helper may not end this process", "run it as root") from error


async def _ended(descriptor: int, limit_s: float) -> bool:
    """Wait until the process has ended: then its descriptor is readable."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(limit_s):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    return True

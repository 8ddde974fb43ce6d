"""End a process that is meant, and no other: SIGTERM, after a while SIGKILL, and seen to be gone.

A pid is nobody's for ever. So the process is held by a file descriptor first (pidfd), then compared with what
was said of it, and then signalled through that descriptor: what has the pid by then is never hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection, Iterator

from partage.edges.hardware import procfs
from partage.edges.hardware.host import Host
from partage.errors import GpuInUse, NotFound, NotPermitted, Unsupported
from partage.model.cgroup import parse_cgroup
from partage.model.process import GpuProcess, ProcessKind
from partage.model.step import EndProcess

GRACE_S = 10.0
"""From SIGTERM to SIGKILL: time to write a checkpoint."""

KILLED_S = 10.0
"""How long a killed process may take to go: the driver gives its memory back first."""


async def end_process(
    host: Host, step: EndProcess, *, grace_s: float = GRACE_S, killed_s: float = KILLED_S
) -> None:
    """End it. Raises NotFound where it is gone, or not the one that is meant; NotPermitted; Unsupported.

    Raises GpuInUse where it does not go: it hangs in the driver.
    """
    refuse_own_process(host, step)
    with _held(step.pid) as descriptor:
        check_identity(host, step)
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, killed_s)):
            _send(descriptor, number)
            if await _ended(descriptor, patience_s):
                return
    who = f"process {procfs.name_of(host.proc, step.pid) or 'unknown'} (pid {step.pid})"
    raise GpuInUse(
        f"{who} does not end, though it was killed {killed_s:g} s ago",
        "it hangs in the driver; dmesg may say why",
        uses=(who,),
    )


def refuse_own_process(host: Host, step: EndProcess) -> None:
    """Raise NotPermitted for process 1, for this process, and for the container that it is in."""
    own = parse_cgroup(procfs.self_cgroups(host.proc)).container
    if step.pid <= 1 or step.pid in procfs.own_pids(host.proc) or (own and own == step.container):
        raise NotPermitted(f"will not {step}: that is the node's, or ourselves")


def check_uses_gpu(rows: Collection[GpuProcess], step: EndProcess) -> None:
    """Raise NotFound for who does not work on the GPU, Unsupported for who does it through MPS."""
    there = [row for row in rows if (row.gpu, row.pid) == (step.gpu, step.pid)]
    if not there:
        raise NotFound(f"cannot {step}: it does not work on GPU {step.gpu}")
    if any(row.kind in (ProcessKind.MPS_CLIENT, ProcessKind.MPS_SERVER) for row in there):
        raise Unsupported(
            f"cannot {step}: a signal to a client of MPS can make the server hang for all others",
            "tell the MPS daemon: terminate_client",
        )


def check_identity(host: Host, step: EndProcess) -> None:
    """Raise NotFound where another process has the pid by now, or another container the process."""
    start = procfs.start_of(host.proc, step.pid)
    container = parse_cgroup(procfs.cgroups_of(host.proc, step.pid)).container
    if start is None:
        raise NotFound(f"cannot {step}: there is no such process")
    if start != step.start:
        raise NotFound(f"cannot {step}: another process has the pid by now")
    if not container or container != step.container:
        raise NotFound(f"cannot {step}: it is in {container[:12] or 'no container'}")


@contextlib.contextmanager
def _held(pid: int) -> Iterator[int]:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise NotFound(f"there is no process {pid}") from error
    except OSError as error:
        raise Unsupported(
            f"process {pid} cannot be held ({error.strerror}), and a pid alone may be somebody else's by now",
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


async def _ended(descriptor: int, patience_s: float) -> bool:
    """Wait until the process has ended: then its descriptor can be read."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(patience_s):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    return True

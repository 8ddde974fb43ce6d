"""Who has a connection to a daemon. Blocking.

A daemon (535, 550, 555) takes one connection for commands at a time, and waits for each new one to say who it
is: whoever connects and says nothing keeps all others out, root and the clients, too. Which process that is,
only the daemon's own end of the connection tells.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from partage.edges.host import procfs
from partage.edges.host.listening import peer_pid
from partage.edges.mps.record import DaemonIdentity

_PIDFD_GETFD = 438
"""The system call's number, the same on all architectures (Linux 5.6)."""


def connected(proc: Path, identity: DaemonIdentity, without: Collection[int] = ()) -> tuple[int, ...]:
    """Pids of the processes that have connected to a daemon, and that are there; none where that may not be
    looked at.

    without: processes that are not meant, as is this one.
    """
    try:
        process = os.pidfd_open(identity.pid)
    except OSError:
        return ()
    try:
        if procfs.start_of(proc, identity.pid, running=True) != identity.started:
            return ()
        found = {peer_pid(connection) for connection in _connections(proc, identity.pid, process)}
    finally:
        os.close(process)
    others = found - {0, identity.pid, *procfs.own_pids(proc), *without}
    return tuple(sorted(pid for pid in others if procfs.runs(proc, pid)))


def _connections(proc: Path, pid: int, process: int) -> Iterator[socket.socket]:
    """A process's connected unix sockets, each open until the next."""
    try:
        numbers = [int(entry.name) for entry in os.scandir(proc / str(pid) / "fd")]
    except OSError:
        return
    for number in numbers:
        try:
            if not str((proc / str(pid) / "fd" / str(number)).readlink()).startswith("socket:"):
                continue
        except OSError:
            continue
        handle = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, number, 0)
        if handle < 0:
            continue
        with socket.socket(fileno=handle) as one:
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if one.family == socket.AF_UNIX and not listens:
                yield one

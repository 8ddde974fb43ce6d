"""What /proc says of control daemons, their servers, and who has connected to a daemon (blocking and fast);
how they are ended, and waited for.

A process is told from a later one with the same pid by its start time and the boot. Which one is the daemon,
the record of its start says, or ``holders``.

A daemon (535, 550, 555) takes one connection for commands at a time, and waits for each new one to say who it
is: whoever connects and says nothing keeps all others out, root and the clients, too. Which process that is,
only the daemon's own end of the connection tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path, PurePath
from typing import ParamSpec

from partage.edges.host import procfs
from partage.edges.host.unix_sockets import peer_pid
from partage.edges.mps.holders import Holders, Programs, holders
from partage.edges.mps.paths import DaemonPaths
from partage.edges.mps.record import DaemonIdentity
from partage.errors import DaemonError, NotPermitted
from partage.model.mps import CONTROL_PROGRAM, MULTI_USER_OPTIONS, SERVER_PROGRAM

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


_NAME_AMONG = 3
"""The program's name is one of the first words of the command line; an interpreter may be before it."""


_DELETED = " (deleted)"
"""What the kernel adds to the path of a program whose file has been removed (proc_pid_exe(5))."""


def _is_program(word: str) -> bool:
    return PurePath(word).name == CONTROL_PROGRAM


def _is_listed(root: Path, path: PurePath) -> bool:
    """Whether there is such an entry. A link is not followed: it would lead into this process's root."""
    try:
        (root / path.relative_to("/")).lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


class ProcessTable:
    """The processes below one /proc."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def holders(self, paths: DaemonPaths, programs: Programs) -> Holders:
        """Who works in these directories; see ``holders``."""
        return holders(self._proc, paths, programs)

    def children(self, parent: DaemonIdentity) -> tuple[DaemonIdentity, ...]:
        """The processes that it has started, and that still run: a daemon's servers."""
        found = (self._identity(pid) for pid in procfs.pids(self._proc) if self._is_child(pid, parent.pid))
        children = tuple(identity for identity in found if identity is not None)
        return children if self.lives(parent) else ()

    def _is_child(self, pid: int, parent: int) -> bool:
        return procfs.parent_of(self._proc, pid) == parent

    def connected(self, daemon: DaemonIdentity) -> tuple[int, ...]:
        """Pids of those who have a connection to a daemon, without its servers."""
        return connected(self._proc, daemon, [identity.pid for identity in self.children(daemon)])

    def descriptors(self, identity: DaemonIdentity) -> Path:
        """The directory of what it has open."""
        return self._proc / str(identity.pid) / "fd"

    def lives(self, identity: DaemonIdentity) -> bool:
        """Whether this process still runs."""
        return self._identity(identity.pid) == identity

    def multi_user(self, pid: int) -> bool:
        """Whether its command line asks for one server for all users."""
        return not set(MULTI_USER_OPTIONS.values()).isdisjoint(self._words(pid, "cmdline"))

    def protocol(self, pid: int) -> int:
        """Version of the interface in its command line, 2 or 3."""
        words = self._words(pid, "cmdline")
        return 3 if ("-p", "3") in pairwise(words) else 2

    def owner(self, pid: int) -> int | None:
        """Effective user id of a process; None if there is none.

        Not the owner of its directory in /proc, which is root after a change of the user id.
        """
        for line in self._read(pid, "status").splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[2])
        return None

    def namespace_pid(self, pid: int) -> int | None:
        """Its pid in its innermost pid namespace; None if the kernel does not report it."""
        for line in self._read(pid, "status").splitlines():
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
        return None

    def command(self, pid: int) -> str:
        """The short name of a process's command; empty if there is none."""
        return procfs.name_of(self._proc, pid)

    def missing_program(self, pid: int) -> str:
        """Why a daemon cannot run its server any more, a clause; empty if it can, or that cannot be seen.

        The server's program is run when it is needed: by then the image from which the daemon was started may
        be gone. It is looked for in the daemon's own file system, beside its own program and in its PATH.
        """
        own = next((word for word in self._words(pid, "cmdline")[:_NAME_AMONG] if _is_program(word)), "")
        try:
            if str((self._proc / str(pid) / "exe").readlink()).endswith(_DELETED):
                return f"its own program {own} has been removed"
            root = self._proc / str(pid) / "root"
            root.stat()
            searched = [str(PurePath(own).parent), *self._path_of(pid)]
            if not any(_is_listed(root, PurePath(directory) / SERVER_PROGRAM) for directory in searched):
                return f"there is no {SERVER_PROGRAM} in its file system any more"
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES) or not self._words(pid, "cmdline")[0]:
                return ""  # it may not be looked at, or has ended
            return f"its file system is gone: {error.strerror}"
        return ""

    def _path_of(self, pid: int) -> list[str]:
        words = (word for word in self._words(pid, "environ") if word.startswith("PATH="))
        return next(words, "").removeprefix("PATH=").split(":")

    def signal(self, identity: DaemonIdentity, number: signal.Signals) -> None:
        """Send a signal to exactly this process. Raises PermissionError."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(identity.pid)
            try:
                if self.lives(identity):  # while the handle is open the pid is not reused
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    # --- /proc --------------------------------------------------------------------------------

    def _identity(self, pid: int) -> DaemonIdentity | None:
        start = procfs.start_of(self._proc, pid, running=True)
        return None if start is None else DaemonIdentity(pid, start, procfs.boot_id(self._proc))

    def _words(self, pid: int, name: str) -> list[str]:
        return [os.fsdecode(word) for word in self._read(pid, name).split(b"\0")]

    def _read(self, pid: int, name: str) -> bytes:
        try:
            return (self._proc / str(pid) / name).read_bytes()
        except OSError:
            return b""


P = ParamSpec("P")

_LOOK_EVERY_S = 0.02
_KILLED_S = 5.0
"""Seconds for the kernel to end a killed process; a process in a driver call can take longer."""


async def wait_until(condition: Callable[[], Awaitable[object]], limit_s: float) -> bool:
    """Wait until a condition holds; False if it did not in time. It is checked at least once."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not await condition():
        if loop.time() >= end_s:
            return False
        await asyncio.sleep(_LOOK_EVERY_S)
    return True


def in_thread(
    check: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> Callable[[], Awaitable[object]]:
    """A condition that is checked in a thread, for ``wait_until``."""
    return lambda: asyncio.to_thread(check, *args, **kwargs)


async def wait_until_gone(processes: ProcessTable, identity: DaemonIdentity, limit_s: float) -> bool:
    """Whether a process ends in time."""
    return await wait_until(in_thread(lambda: not processes.lives(identity)), limit_s)


async def kill(processes: ProcessTable, identity: DaemonIdentity, grace_s: float) -> None:
    """SIGTERM, and SIGKILL after grace_s. Raises NotPermitted; DaemonError if it does not end."""
    for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILLED_S)):
        try:
            await asyncio.to_thread(processes.signal, identity, number)
        except PermissionError as error:
            raise NotPermitted(f"process {identity.pid} may not be ended: {error}") from error
        if await wait_until_gone(processes, identity, limit_s):
            return
    raise DaemonError(
        f"process {identity.pid} of an MPS daemon does not end, though it was killed",
        "a driver call holds it; dmesg may say which GPU is in trouble",
    )


async def kill_all(processes: ProcessTable, ended: Iterable[DaemonIdentity], grace_s: float) -> None:
    """End these processes, concurrently."""
    await asyncio.gather(*(kill(processes, identity, grace_s) for identity in ended))

"""Processes that work in a daemon's directory, without the word of the process that started them. Blocking.

Names, environments and files that a tenant can write say nothing here. A process counts because it has one of
the daemon's logs open for writing: their directory is mounted into no container. NVIDIA's daemons (535, 550,
555) keep ``control.log`` and ``server.log`` open from their start.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from partage.edges.host import procfs
from partage.edges.mps.paths import DaemonPaths
from partage.edges.mps.record import DaemonIdentity
from partage.model.cgroup import parse_cgroup
from partage.values import Frozen

FileId = tuple[int, int]
"""Device and inode."""


class Programs(Frozen):
    """The driver's programs, as the kernel knows them: files that their processes run.

    None: any, for a process that was started a moment ago.
    """

    control: frozenset[FileId] | None = frozenset()
    server: frozenset[FileId] | None = frozenset()


class Holders(Frozen):
    """Who has the logs of one daemon open for writing.

    daemons: control daemons that may be adopted. servers: the same of servers. strangers: all others; nobody
    knows what they do there, so they are not ended.
    """

    daemons: tuple[DaemonIdentity, ...] = ()
    servers: tuple[DaemonIdentity, ...] = ()
    strangers: tuple[DaemonIdentity, ...] = ()


def file_ids(programs: Collection[Path]) -> frozenset[FileId]:
    """What a process that runs one of these programs has as its program; of a script, its interpreter."""
    found = set()
    for program in programs:
        try:
            with program.open("rb") as file:
                first = file.readline(256)
            run = Path(os.fsdecode(first[2:].split()[0])) if first.startswith(b"#!") else program
            found.add(_id(run.stat()))
        except (OSError, IndexError):
            continue
    return frozenset(found)


def holders(proc: Path, paths: DaemonPaths, programs: Programs) -> Holders:
    """All of them. A process that may not be looked at is not among them: root may look at all."""
    control, logs = (
        _files(paths.log / "control.log"),
        _files(paths.log / "control.log", paths.log / "server.log", paths.server_log),
    )
    daemons, servers, strangers = {}, {}, {}
    for pid in procfs.pids(proc) if logs else ():
        opened = _written(proc, pid) if pid not in procfs.own_pids(proc) else frozenset()
        start = procfs.start_of(proc, pid, running=True) if opened & logs else None
        if start is None:
            continue
        identity = DaemonIdentity(pid, start, procfs.boot_id(proc))
        try:
            program = _program(proc, pid)
        except FileNotFoundError:
            continue  # it is ending: its memory is gone already, its files are closed next
        if opened & control and _is_one_of(program, programs.control) and _is_trusted(proc, pid, root=True):
            daemons[pid] = identity
        elif _is_one_of(program, programs.server) and _is_trusted(proc, pid, root=False):
            servers[pid] = identity
        else:
            strangers[pid] = identity
    # A daemon's children have inherited its files: until they run the server's program they look as it does.
    children = [pid for pid in daemons if procfs.parent_of(proc, pid) in daemons]
    servers |= {pid: daemons.pop(pid) for pid in children}
    return Holders(tuple(daemons.values()), tuple(servers.values()), tuple(strangers.values()))


def _is_trusted(proc: Path, pid: int, *, root: bool) -> bool:
    """Not a tenant's: in no container but this process's own or the node, and in no other pid namespace.

    root: all its user ids are this process's, which is root; a server may have its clients' user.
    """
    if root and set(procfs.uids_of(proc, pid)) != {os.geteuid()}:
        return False
    try:
        same = (proc / str(pid) / "ns/pid").readlink() == (proc / "self/ns/pid").readlink()
    except OSError:
        return False
    owner = parse_cgroup(procfs.cgroups_of(proc, pid))
    # A node may be a container itself (kind): then that of process 1 has its daemons, too.
    ours = (parse_cgroup(procfs.self_cgroups(proc)), parse_cgroup(procfs.cgroups_of(proc, 1)))
    return same and (not owner or owner in ours)


def _is_one_of(program: FileId | None, programs: frozenset[FileId] | None) -> bool:
    return program is not None and (programs is None or program in programs)


def _program(proc: Path, pid: int) -> FileId | None:
    """None if it may not be looked at. Raises FileNotFoundError if it runs none any more."""
    try:
        return _id((proc / str(pid) / "exe").stat())
    except FileNotFoundError:
        raise
    except OSError:
        return None


def _files(*logs: Path) -> frozenset[FileId]:
    def ids() -> Iterator[FileId]:
        for log in logs:
            try:
                yield _id(log.lstat())
            except OSError:
                continue

    return frozenset(ids())


def _written(proc: Path, pid: int) -> frozenset[FileId]:
    """Files that a process has open for writing: such a descriptor's link is writable (proc_pid_fd(5))."""
    found = set()
    try:
        with os.scandir(proc / str(pid) / "fd") as entries:
            for entry in entries:
                try:
                    if entry.stat(follow_symlinks=False).st_mode & stat.S_IWUSR:
                        found.add(_id(entry.stat()))
                except OSError:
                    continue
    except OSError:
        return frozenset()
    return frozenset(found)


def _id(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino

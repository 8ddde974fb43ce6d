"""What /proc says of a process. A process can end at any time, so every read may find nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from partage.values import Frozen

_STATE, _PARENT, _START = 0, 1, 19
"""Indexes after the name in ``/proc/<pid>/stat``; the start time is field 22 of all (proc_pid_stat(5))."""

_DEAD_STATES = frozenset("ZXx")

_UID = re.compile(r"^Uid:\s*(\d+)", re.MULTILINE | re.ASCII)
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The node's own pid namespace has this number on every Linux (PROC_PID_INIT_INO)."""


class ProcessInfo(Frozen):
    """One process; all fields were read while the same process had the pid. See
    ``model.gpu_use.GpuProcess``.
    """

    name: str
    cgroups: tuple[str, ...]
    start: int
    uid: int | None


def read_process(proc: Path, pid: int) -> ProcessInfo | None:
    """The process with this pid; None if there is none, or it may not be read."""
    start = start_of(proc, pid)
    if start is None:
        return None
    uid = _UID.search(_read(proc, pid, "status"))
    seen = ProcessInfo(name_of(proc, pid), cgroups_of(proc, pid), start, int(uid[1]) if uid else None)
    return seen if start_of(proc, pid) == start else None


def start_of(proc: Path, pid: int, *, running: bool = False) -> int | None:
    """Start time in clock ticks since boot. running: None also for a process that has ended (a zombie)."""
    # The name in parentheses may contain any character, also parentheses.
    words = _read(proc, pid, "stat").rpartition(")")[2].split()
    try:
        return None if running and words[_STATE] in _DEAD_STATES else int(words[_START])
    except (IndexError, ValueError):
        return None


def parent_of(proc: Path, pid: int) -> int | None:
    """Pid of its parent."""
    words = _read(proc, pid, "stat").rpartition(")")[2].split()
    try:
        return int(words[_PARENT])
    except (IndexError, ValueError):
        return None


def uids_of(proc: Path, pid: int) -> tuple[int, ...]:
    """Real, effective, saved and file system user id; empty if there is no such process."""
    for line in _read(proc, pid, "status").splitlines():
        if line.startswith("Uid:"):
            return tuple(map(int, line.split()[1:5]))
    return ()


def boot_id(proc: Path) -> str:
    """The id of this boot; empty if the kernel has none."""
    return _text(proc / "sys/kernel/random/boot_id").strip()


def cgroups_of(proc: Path, pid: int) -> tuple[str, ...]:
    """The lines of its ``cgroup`` file."""
    return tuple(_read(proc, pid, "cgroup").splitlines())


def self_cgroups(proc: Path) -> tuple[str, ...]:
    """The lines of this process's ``cgroup`` file."""
    return tuple(_text(proc / "self/cgroup").splitlines())


def cgroup_mounts(proc: Path, process: str) -> Iterator[tuple[str, str]]:
    """Hierarchy (empty: v2) and mount point of every cgroup file system that a process has mounted
    (proc_pid_mountinfo(5))."""
    for line in mount_lines(proc, process):
        before, _, after = line.partition(" - ")
        words = after.split()
        if words[:1] == ["cgroup2"]:
            yield "", before.split()[4]
        elif words[:1] == ["cgroup"]:
            options = words[-1].split(",")
            yield ",".join(option for option in options if _is_of_name(option)), before.split()[4]


def is_root_cgroup(directory: Path, hierarchy: str) -> bool:
    """Whether this is the node's root cgroup: the root of v2 has no ``cgroup.type``, only that of v1 has a
    ``release_agent``. Raises OSError.
    """
    if hierarchy:
        return (directory / "release_agent").exists()
    return (directory / "cgroup.procs").exists() and not (directory / "cgroup.type").exists()


_NO_CONTROLLERS = frozenset({"rw", "ro", "xattr", "clone_children", "noprefix"})


def _is_of_name(option: str) -> bool:
    """Whether a mount option is a part of the hierarchy's name in ``/proc/<pid>/cgroup``."""
    return option.startswith("name=") or ("=" not in option and option not in _NO_CONTROLLERS)


def mount_lines(proc: Path, process: str) -> list[str]:
    """The lines of its ``mountinfo`` (proc_pid_mountinfo(5)); none if it cannot be read."""
    return _text(proc / process / "mountinfo").splitlines()


def thread_fields(proc: Path, tid: int) -> dict[str, str]:
    """The lines of a thread's ``status``, also of one that is no leader; empty if it has ended. Unlike
    ``cmdline``, reading it never waits for a process that is stuck.
    """
    lines = (line.partition(":") for line in _read(proc, tid, "status").splitlines())
    return {key: value.strip() for key, _, value in lines}


def command_of(proc: Path, pid: int) -> list[str]:
    """The words of its command line. Waits for a process that is stuck."""
    return _read(proc, pid, "cmdline").rstrip("\0").split("\0")


def name_of(proc: Path, pid: int) -> str:
    """The first 15 characters of its command's name; empty if /proc does not show it."""
    return _read(proc, pid, "comm").strip()


def own_pids(proc: Path) -> frozenset[int]:
    """This process's pid, and its pid in this /proc."""
    try:
        return frozenset({os.getpid(), int(str((proc / "self").readlink()))})
    except (OSError, ValueError):
        return frozenset({os.getpid()})


def pids(proc: Path) -> list[int]:
    """All processes that can be seen, ascending."""
    try:
        return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    except OSError:
        return []


def pid_namespace(proc: Path) -> str:
    """The pid namespace of this process, ``pid:[4026531836]``; empty if it cannot be read."""
    return namespace_of(proc, "self", "pid")


def namespace_of(proc: Path, process: str, kind: str) -> str:
    """A namespace of a process, ``mnt:[4026531841]``. kind: ``mnt``, ``pid``; empty if it cannot be read."""
    try:
        return str((proc / process / "ns" / kind).readlink())
    except OSError:
        return ""


def sees_all_pids(proc: Path) -> bool:
    """Whether this process is in the node's own pid namespace."""
    return pid_namespace(proc) == INITIAL_PID_NAMESPACE


def runs(proc: Path, pid: int) -> bool:
    """Whether this process exists and has not ended; one that waits for its parent has."""
    state = _read(proc, pid, "stat").rpartition(")")[2].split()[:1]
    return exists(pid) and state not in (["Z"], ["X"])


def exists(pid: int) -> bool:
    """Whether a process has this pid, even if /proc does not show it (``hidepid``)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def uid_map_of(proc: Path, pid: int) -> str:
    """Its user namespace: lines of user id there, user id here, how many (user_namespaces(7))."""
    return _read(proc, pid, "uid_map")


def _read(proc: Path, pid: int, file: str) -> str:
    return _text(proc / str(pid) / file)


def _text(path: Path) -> str:
    """Empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

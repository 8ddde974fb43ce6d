"""Finds out where a daemon can live, and sees afterwards whether it does (``model.mps`` decides).

The kernel marks the host's root cgroup: the root of v2 has no ``cgroup.type``, only that of v1 has a
``release_agent``. Paths do not tell it: each cgroup namespace calls its own root ``/``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

from partage.edges.host import procfs
from partage.edges.mps.paths import DaemonPaths
from partage.edges.mps.systemd import HostSystemd, unit_name
from partage.model.cgroup import parse_cgroup
from partage.model.mps import (
    UNIFIED,
    DaemonHome,
    HomeChoice,
    HomeKind,
    Surroundings,
    bound_to,
    choose_home,
)
from partage.values import Frozen

INITIAL_CGROUP_NAMESPACE = "cgroup:[4026531835]"
"""The host's own cgroup namespace has this number on every Linux (PROC_CGROUP_INIT_INO)."""

_CGROUP = "partage-mps"

_LEAVES_WITHIN_S = (0.01, 0.05, 0.1, 0.2, 0.0)
"""Pauses after each try to remove a cgroup."""


class DaemonHost(Frozen):
    """The node around the daemons. The directories are parameters, so that tests can use their own.

    run: ``/run``, with the sockets of systemd and D-Bus. path: where systemd-run is looked for.
    own_mounts: whether a daemon's directories are file systems of their own, shm as its /dev/shm; that needs
    CAP_SYS_ADMIN. choice: the operator's.
    node_pids: the node's pid namespace.
    """

    proc: Path = Path("/proc")
    run: Path = Path("/run")
    selinux: Path = Path("/sys/fs/selinux")
    path: str | None = None
    own_mounts: bool = True
    choice: HomeChoice = HomeChoice.AUTO
    node_pids: str = procfs.INITIAL_PID_NAMESPACE

    @property
    def sees_node_pids(self) -> bool:
        """Whether process 1 is the node's."""
        return procfs.pid_namespace(self.proc) == self.node_pids

    @property
    def node_root(self) -> Path | None:
        """The node's root, seen from a container; None outside of one, or if process 1 is not the node's."""
        contained = self._is_contained(procfs.self_cgroups(self.proc))
        return self.proc / "1/root" if contained and self.sees_node_pids else None

    def systemd(self) -> HostSystemd:
        """The node's systemd, asked from here or, in a container, through process 1. Blocking."""
        contained = self._is_contained(procfs.self_cgroups(self.proc))
        reason = "" if self.sees_node_pids else "process 1 is not the node's (hostPID is needed)"
        through = self.proc / "1" if contained else None
        return HostSystemd(self.run, self.path, through, reason if contained else "")

    def surroundings(self, shared: Iterable[tuple[Path, Path]] = ()) -> Surroundings:
        """What this process can reach. shared: as for ``HostSystemd.absent``. Blocking."""
        lines = procfs.self_cgroups(self.proc)
        return Surroundings(
            no_systemd=self.systemd().absent(shared),
            contained=self._is_contained(lines),
            host_pids=self.sees_node_pids,
            hierarchies=tuple(line.split(":", 2)[1] for line in lines if line.count(":") >= 2),
            roots=dict(self._roots()),
        )

    def home(self, shared: Iterable[tuple[Path, Path]] = ()) -> DaemonHome:
        """The home of a daemon. shared: as for ``HostSystemd.absent``. Blocking. Raises Unsupported."""
        return choose_home(self.surroundings(shared), self.choice)

    def make_cgroups(self, home: DaemonHome, paths: DaemonPaths) -> tuple[str, ...]:
        """The cgroups that the daemon has to join, made if they are missing. Blocking."""
        found = _cgroups(home, paths)
        if home.unified:
            with contextlib.suppress(OSError):
                Path(found[0]).mkdir(parents=True, exist_ok=True)
        return found

    def remove_cgroup(self, paths: DaemonPaths) -> None:
        """Remove the daemon's own cgroup. If a process is still in it, it stays; it uses no resources.
        Blocking: the last thread of a killed process may leave after the process is seen to have ended.
        """
        root = dict(self._roots()).get(UNIFIED)
        if root is None:
            return
        for pause_s in _LEAVES_WITHIN_S:
            try:
                _own_cgroup(Path(root), paths).rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(pause_s)
            else:
                return

    def cgroup_namespace(self) -> str:
        """The host's cgroup namespace, to enter before a cgroup of the host is joined: where v2 is mounted
        with ``nsdelegate`` the kernel refuses to move a process out of its namespace. Empty: it is this
        process's own, or cannot be reached.
        """
        host = self.proc / "1/ns/cgroup"
        return "" if self._in_host_cgroups() or not _can_read_link(host) else str(host)

    def bound_to(self, home: DaemonHome, paths: DaemonPaths, pid: int, unit_pid: int | None = None) -> str:
        """Whether the running daemon ends with what started it, a sentence; empty: it does not. Blocking.

        unit_pid: the process that its unit has, if it is to be one.
        """
        contained = self._is_contained(procfs.self_cgroups(self.proc))
        if home.kind is HomeKind.UNIT:
            left = "" if unit_pid == pid else f"the unit {unit_name(paths.device)}"
            return bound_to(home, contained=contained, left_in=left)
        if home.kind is not HomeKind.CGROUP:
            return bound_to(home, contained=contained)
        left = next((f"the cgroup {cgroup}" for cgroup in _cgroups(home, paths) if not _has(cgroup, pid)), "")
        return bound_to(home, contained=contained, left_in=left)

    # --- what there is ------------------------------------------------------------------------

    def _in_host_cgroups(self) -> bool:
        try:
            return str((self.proc / "self/ns/cgroup").readlink()) == INITIAL_CGROUP_NAMESPACE
        except OSError:
            return True  # a kernel without cgroup namespaces

    def _is_contained(self, cgroups: tuple[str, ...]) -> bool:
        owner = parse_cgroup(cgroups)
        return not self._in_host_cgroups() or bool(owner.container or owner.pod)

    def _roots(self) -> Iterator[tuple[str, str]]:
        """Hierarchy and directory of each root cgroup of the host that can be written.

        Mounts of this process, then those of process 1: with the host's pid namespace that is the host's.
        """
        seen: set[str] = set()
        views = [("self", Path())]
        if self.sees_node_pids:
            views.append(("1", self.proc / "1/root"))
        for process, above in views:
            for name, mounted in procfs.cgroup_mounts(self.proc, process):
                directory = above / mounted.lstrip("/") if above.parts else Path(mounted)
                if name not in seen and _is_host_root(directory, name):
                    seen.add(name)
                    yield name, str(directory)


def _is_host_root(directory: Path, name: str) -> bool:
    try:
        marked = procfs.is_root_cgroup(directory, name)
        return marked and os.access(directory, os.W_OK) and os.access(directory / "cgroup.procs", os.W_OK)
    except OSError:
        return False


def _own_cgroup(root: Path, paths: DaemonPaths) -> Path:
    return root / _CGROUP / f"{paths.device}@{crc32(os.fsencode(paths.home)):08x}"


def _cgroups(home: DaemonHome, paths: DaemonPaths) -> tuple[str, ...]:
    """The home that the daemon is to have. Of v2 that is a cgroup of its own, which may not be there."""
    own = [str(_own_cgroup(Path(home.roots[0]), paths))] if home.unified else []
    return (*own, *home.roots[len(own) :])


def _has(cgroup: str, pid: int) -> bool:
    """Whether a process is in a cgroup."""
    return str(pid) in _lines(Path(cgroup, "cgroup.procs"))


def _can_read_link(path: Path) -> bool:
    try:
        path.readlink()
    except OSError:
        return False
    return True


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []

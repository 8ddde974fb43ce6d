"""The file systems of a daemon's directories: a tmpfs for each, with a limit. Blocking.

Tenants write into ``pipe`` and ``shm``, and bring about what is in ``log``. On a file system of their own
they fill neither ``/run`` nor one another. Nothing is ever mounted over a directory that was there before:
containers may have it mounted, and would not see what is made in its place.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from partage.edges.mps.launch import (
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_NOSYMFOLLOW,
    MS_RELATIME,
    mount,
    unmount,
)
from partage.edges.mps.paths import DaemonPaths
from partage.units import MIB

READABLE = 0o755
"""pipe and log: the daemon creates files in them that every user uses. As with NVIDIA's daemon."""
SHARED = 0o1777
"""shm: every user creates files, and may remove only their own."""

PIPE_BYTES = 4 * MIB
PIPE_FILES = 65536
"""Sockets and directories: a daemon has five, and some for each of its namespaces, of which there may be
thousands."""
LOG_BYTES = 16 * MIB
"""Four times what ``daemon_logs`` lets a log grow to: it looks every few seconds only."""
LOG_FILES = 256

_LEAST_SHM_BYTES = 64 * MIB
"""Size of shm if the node's memory is not known; NVIDIA's default too."""
_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME
_NO_LINKS = _FLAGS | MS_NOSYMFOLLOW
"""A daemon makes its files as root, by name, where a tenant may be faster and put a link there. Linux 5.10
and newer follow none on such a mount; older ones do not know the flag, and ignore it. Not for shm: programs
may have links of their own in it."""
_FULL = 0.01
"""A file system with less than this part of its space or its files left counts as full."""


def mount_all(paths: DaemonPaths, directories: Iterable[Path], *, proc: Path, node: Path | None) -> str:
    """Mount a tmpfs on each of these directories of a daemon, or on none. Returns why on none, a clause.

    node: the node's root as this process sees it, where it is in a container: what is mounted here has to be
    seen there, because daemons and containers get it from there. None: this process is not in a container, or
    cannot look. Raises OSError.
    """
    limits = {
        paths.pipe: (READABLE, PIPE_BYTES, PIPE_FILES, _NO_LINKS),
        paths.log: (READABLE, LOG_BYTES, LOG_FILES, _NO_LINKS),
        paths.shm: (SHARED, _shm_bytes(proc), 0, _FLAGS),  # 0: no limit but that of the bytes
    }
    mounted: list[Path] = []
    for directory in directories:
        mode, size_bytes, files, flags = limits[directory]
        options = f"mode={mode:o},size={size_bytes // 1024}k" + (f",nr_inodes={files}" if files else "")
        try:
            mount(directory.name, str(directory), "tmpfs", flags, options)
        except OSError as error:
            unmount_all(mounted)
            if error.errno not in (errno.EPERM, errno.EACCES):
                raise
            return "mounting is not permitted here"
        mounted.append(directory)
        if node is not None and not _is_same(directory, node):
            unmount_all(mounted)
            return "what is mounted here is not seen on the node (its mount propagation is not bidirectional)"
    return ""


def unmount_all(directories: Iterable[Path]) -> None:
    """Detach what is mounted there, as often as it is. Raises OSError."""
    for directory in directories:
        while directory.is_mount():
            unmount(str(directory))


def full_directories(paths: DaemonPaths) -> str:
    """Which directories of a daemon have no room left, a sentence; empty: none."""
    full = [path.name for path in (paths.pipe, paths.log, paths.shm) if _is_full(path)]
    if not full:
        return ""
    have = "has" if len(full) == 1 else "have"
    return f"{' and '.join(full)} of its MPS daemon {have} no room left: {paths.home}"


def _is_full(directory: Path) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    left = ((found.f_bavail, found.f_blocks), (found.f_favail, found.f_files))
    return any(of and free < of * _FULL for free, of in left)


def _is_same(directory: Path, node: Path) -> bool:
    try:
        return directory.samefile(node / directory.relative_to("/"))
    except PermissionError:
        return True  # the node's root may not be looked at
    except OSError:
        return False


def _shm_bytes(proc: Path) -> int:
    """Half of the node's memory, as with NVIDIA's daemon."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024 // 2
    return _LEAST_SHM_BYTES

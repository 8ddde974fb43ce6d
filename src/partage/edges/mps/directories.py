"""Creates a daemon's directories, with access for clients of all users, and removes them. Blocking.

MPS servers need access too: a server runs as the user of its clients. If a parent directory is only open to
root, no such server can start (reported for ``/run/nvidia`` with mode 0700).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath

from partage.edges.empty_directory import empty_directory
from partage.edges.mps.launch import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RELATIME, mount, unmount
from partage.edges.mps.paths import DaemonPaths
from partage.errors import DaemonError, NotPermitted
from partage.model.mps import SERVER, is_mps_name

_PASSABLE = 0o711
"""Parents: every user may pass, only root may list."""
_READABLE = 0o755
"""pipe and log: the daemon creates files in them that every user uses. As with NVIDIA's daemon."""
_SHARED = 0o1777
"""shm: every user creates files, and may remove only their own."""
_UNUSED = 0o700
"""shm where the daemon has the node's: in a plain directory other users could fill the run directory."""

_SELINUX_LABEL = b"system_u:object_r:container_file_t:s0\0"
_LEAST_SHM_BYTES = 64 * 2**20
"""Size of shm if the node's memory is not known; NVIDIA's default too."""


def make_directories(paths: DaemonPaths, *, proc: Path, selinux: Path, own_shm: bool) -> str:
    """Create all directories of a daemon. own_shm: shm becomes a tmpfs; else nobody uses it.

    Returns a sentence about remaining problems, or nothing. Raises NotPermitted, DaemonError.
    """
    with _translated(paths.home):
        run_dir = paths.home.parent.parent
        run_dir.mkdir(mode=_READABLE, parents=True, exist_ok=True)
        for parent in (run_dir, paths.home.parent, paths.home):
            parent.mkdir(mode=_PASSABLE, exist_ok=True)
            _let_pass(parent)
        shm_mode = _SHARED if own_shm else _UNUSED
        for directory, mode in ((paths.pipe, _READABLE), (paths.log, _READABLE), (paths.shm, shm_mode)):
            directory.mkdir(exist_ok=True)
            directory.chmod(mode)  # not by mkdir, which applies the umask
        remarks = [
            _mount_shm(paths.shm, proc) if own_shm else "",
            _label(paths, selinux),
            _impassable(run_dir),
        ]
    return "; ".join(remark for remark in remarks if remark)


def remove_directories(paths: DaemonPaths) -> None:
    """Remove the directories with everything in them. Raises NotPermitted, DaemonError."""
    with _translated(paths.home):
        while paths.shm.is_mount():
            unmount(str(paths.shm))
        for written in (paths.pipe, paths.shm):  # as deep and as full as a tenant has made them
            empty_directory(written)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(paths.home)


def empty_directories(paths: DaemonPaths) -> None:
    """Remove what a dead daemon and its tenants left in its directories, but keep the directories, also those
    of namespaces below ``pipe``.

    Running containers have them mounted: new directories would not be visible to them, and what is removed
    here may change at every moment. Raises NotPermitted, DaemonError.
    """
    with _translated(paths.home):
        empty_directory(paths.pipe, keep=_is_of_namespace)
        empty_directory(paths.shm)


def _is_of_namespace(below: PurePath) -> bool:
    """``gpu`` and ``gpu/<namespace>``."""
    first, *names = below.parts
    return first == SERVER and all(map(is_mps_name, names)) and len(names) <= 1


def is_own_shm(paths: DaemonPaths) -> bool:
    """Whether shm is a mounted file system."""
    return paths.shm.is_mount()


def _let_pass(directory: Path) -> None:
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o011 != 0o011:
        directory.chmod(mode | 0o011)


def _impassable(run_dir: Path) -> str:
    """What keeps other users than root from reaching the run directory; not changed by Partage."""
    closed = [str(parent) for parent in run_dir.resolve().parents if not parent.stat().st_mode & 0o001]
    return f"only the owner of {closed[-1]} can be a client: others cannot pass it" if closed else ""


def _mount_shm(shm: Path, proc: Path) -> str:
    """Mount a tmpfs: tenants write into it, and must not fill the file system of the run directory."""
    if shm.is_mount():
        return ""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME
    try:
        mount("shm", str(shm), "tmpfs", flags, f"mode={_SHARED:o},size={_shm_bytes(proc) // 1024}k")
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES):
            raise
        return "shm is not a tmpfs: mounting is not permitted here"
    return ""


def _shm_bytes(proc: Path) -> int:
    """Half of the node's memory, as with NVIDIA's daemon."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024 // 2
    return _LEAST_SHM_BYTES


def _label(paths: DaemonPaths, selinux: Path) -> str:
    """Let SELinux-confined containers access the directories. New files in them inherit the label."""
    if not selinux.is_dir():
        return ""
    try:
        for directory in (paths.pipe, paths.log, paths.shm):
            os.setxattr(directory, "security.selinux", _SELINUX_LABEL)
    except OSError as error:
        return f"SELinux may keep containers out: {error.filename} cannot be labelled: {error.strerror}"
    return ""


@contextlib.contextmanager
def _translated(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"the directories of an MPS daemon, {home}, cannot be prepared: {error}"
        if error.errno in (errno.EPERM, errno.EACCES):
            raise NotPermitted(message, "--run-dir must belong to Partage's user") from error
        raise DaemonError(message, "is there space left, and is --run-dir writable?") from error

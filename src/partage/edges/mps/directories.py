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

from partage.edges.host.empty_directory import empty_directory
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.mounts import READABLE, SHARED, mount_all, unmount_all
from partage.edges.mps.paths import DaemonPaths
from partage.edges.mps.record import DirectoryKind
from partage.errors import DaemonError, NotPermitted
from partage.model.mps import SERVER, is_mps_name
from partage.values import Frozen

_PASSABLE = 0o711
"""Parents: every user may pass, only root may list."""
_UNUSED = 0o700
"""shm where the daemon has the node's: in a plain directory other users could fill the run directory."""

_SELINUX_LABEL = b"system_u:object_r:container_file_t:s0\0"


class MadeDirectories(Frozen):
    """kind: how a daemon that is started in them has them. remark: a sentence about remaining problems."""

    kind: DirectoryKind
    remark: str = ""


def make_directories(paths: DaemonPaths, host: DaemonHost) -> MadeDirectories:
    """Create the directories of a daemon that are not there yet, each as a file system of its own if the host
    is to have those.

    What is there stays as it is: containers may have it mounted. Raises NotPermitted, DaemonError.
    """
    with _translated(paths.home):
        run_dir = paths.home.parent.parent
        run_dir.mkdir(mode=READABLE, parents=True, exist_ok=True)
        for parent in (run_dir, paths.home.parent, paths.home):
            parent.mkdir(mode=_PASSABLE, exist_ok=True)
            _let_pass(parent)
        ours = (paths.pipe, paths.log, paths.shm)
        new = [directory for directory in ours if _made(directory)]
        plain = mount_all(paths, new, proc=host.proc, node=host.node_root) if host.own_mounts else ""
        shm_mode = SHARED if host.own_mounts else _UNUSED
        for directory, mode in zip(ours, (READABLE, READABLE, shm_mode), strict=True):
            directory.chmod(mode)  # not by mkdir, which applies the umask
        kind = DirectoryKind.PLAIN
        if host.own_mounts and not plain:
            bounded = all(directory.is_mount() for directory in ours)
            kind = DirectoryKind.BOUNDED if bounded else DirectoryKind.OLD
        remarks = [
            f"pipe, log and shm are no file systems of their own: {plain}" if plain else "",
            _label(paths, host.selinux),
            _impassable(run_dir),
        ]
    return MadeDirectories(kind, "; ".join(remark for remark in remarks if remark))


def remove_directories(paths: DaemonPaths) -> None:
    """Remove the directories with everything in them. Raises NotPermitted, DaemonError."""
    with _translated(paths.home):
        ours = (paths.pipe, paths.log, paths.shm)
        for path in filter(Path.is_mount, ours):
            with contextlib.suppress(OSError):  # else its memory is in use where others still have it mounted
                empty_directory(path)
        unmount_all(ours)
        for written in (paths.pipe, paths.shm):  # as deep and as full as a tenant has made them
            empty_directory(written)
            with contextlib.suppress(FileNotFoundError):
                written.rmdir()  # and no more than that, if somebody has been faster
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


def _made(directory: Path) -> bool:
    """Whether it had to be made."""
    try:
        directory.mkdir()
    except FileExistsError:
        return False
    return True


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

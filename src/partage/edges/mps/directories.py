"""Creates a daemon's directories, with access for clients of all users, each a file system with a limit;
empties and removes them. Blocking.

MPS servers need access too: a server runs as the user of its clients. If a parent directory is only open to
root, no such server can start (reported for ``/run/nvidia`` with mode 0700).

Tenants write into ``pipe`` and ``shm``, and bring about what is in ``log``. On a file system of their own, a
tmpfs, they fill neither ``/run`` nor one another. Nothing is ever mounted over a directory that was there
before: containers may have it mounted, and would not see what is made in its place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from partage.edges.mps.home import DaemonHost
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
from partage.edges.mps.record import DirectoryKind
from partage.errors import DaemonError, NotPermitted
from partage.model.mps import SERVER, is_mps_name
from partage.units import MIB
from partage.values import Frozen

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


MOST_ENTRIES = 200_000
"""What is removed at most at once: others could make new files faster than they are removed."""

_AT_ONCE = 1000
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY)
"""Somebody was faster: it is no folder any more, or something new is in it. It is listed again."""

Keep = Callable[[PurePath], bool]


def keep_nothing(path: PurePath) -> bool:
    """No folder stays."""
    del path
    return False


def empty_directory(directory: Path, keep: Keep = keep_nothing, most: int = MOST_ENTRIES) -> None:
    """Remove all that is in a directory, but not the directory. Nothing to do if there is none.

    keep: folders that stay, by their path below it; they are emptied. What is below a folder that goes, goes,
    too. Raises OSError, also for more than ``most`` entries.
    """
    with contextlib.suppress(FileNotFoundError), _opened(str(directory)) as handle:
        _Emptying(directory, keep, most).empty(handle, PurePath())


class _Emptying:
    def __init__(self, directory: Path, keep: Keep, most: int) -> None:
        self._directory = directory
        self._keep = keep
        self._most = self._left = most

    def empty(self, handle: int, below: PurePath) -> None:
        """As deep as folders are kept, and no deeper."""
        kept: list[str] = []
        while names := self._names(handle, without=kept):  # what was moved up is in the next listing
            for name in names:
                if self._unlinked(handle, name):
                    continue
                if self._keep(below / name):
                    kept.append(name)
                else:
                    self._remove_folder(handle, name)
        for name in kept:
            with _tolerated(), _opened(name, handle) as inner:
                self.empty(inner, below / name)

    def _remove_folder(self, handle: int, name: str) -> None:
        with _tolerated():
            with _opened(name, handle) as inner:
                for one in self._names(inner):
                    if not self._unlinked(inner, one):
                        # The new name is one that nobody can have taken.
                        moved = f".{os.urandom(16).hex()}"
                        with _tolerated():
                            os.rename(one, moved, src_dir_fd=inner, dst_dir_fd=handle)
            os.rmdir(name, dir_fd=handle)

    def _names(self, handle: int, without: Sequence[str] = ()) -> list[str]:
        """The next names of a directory: not all, there may be millions."""
        found = []
        with os.scandir(handle) as entries:
            for entry in entries:
                if entry.name in without:
                    continue
                found.append(entry.name)
                if len(found) == _AT_ONCE:
                    break
        self._left -= len(found)
        if self._left < 0:
            raise OSError(errno.E2BIG, f"more than {self._most} files are in it", str(self._directory))
        return found

    @staticmethod
    def _unlinked(handle: int, name: str) -> bool:
        """Whether it was something else than a folder; then it has gone."""
        try:
            os.unlink(name, dir_fd=handle)
        except FileNotFoundError:
            return True
        except IsADirectoryError:
            return False
        return True


@contextlib.contextmanager
def _opened(path: str, above: int | None = None) -> Iterator[int]:
    handle = os.open(path, _OPEN, dir_fd=above)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _tolerated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _CHANGED:
            raise


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

"""Unix socket files: their identity, and whether their paths are short enough."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from partage.errors import InputError, Problem
from partage.model.ids import ResourceName, plugin_socket_name
from partage.model.paths import check_socket_path
from partage.values import Frozen

SHORTEN = "choose a shorter --kubelet-dir, or a shorter resource name"
"""Advice for a plugin socket whose path is too long."""


class SocketIdentity(Frozen):
    """Tells a socket file from a later one at the same path. Inode numbers are reused soon; the change time
    differs.
    """

    inode: int
    changed_ns: int


def socket_identity(path: Path) -> SocketIdentity | None:
    """The socket at ``path`` now; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return SocketIdentity(found.st_ino, found.st_ctime_ns) if stat.S_ISSOCK(found.st_mode) else None


def may_exist(path: Path) -> bool:
    """Whether something may be at ``path``: False only if the file system says that nothing is there."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def check_plugin_sockets(kubelet_dir: Path, resources: Iterable[ResourceName]) -> None:
    """Raise InputError with a problem for each resource whose socket path is too long."""
    problems: list[Problem] = []
    for name in resources:
        try:
            check_socket_path(kubelet_dir / plugin_socket_name(name), SHORTEN)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)


def remove_socket(path: Path, mine: SocketIdentity | None) -> None:
    """Remove the plugin's socket file, but not one that replaced it."""
    found = socket_identity(path)
    if found is not None and mine is not None and found.inode == mine.inode:
        with suppress(OSError):
            path.unlink()

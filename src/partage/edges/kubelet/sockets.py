"""Unix socket files: their identity and names, whether their paths are short enough, and those of a resource
that the kubelet keeps in its table until it starts again: docs/adr/0126.

It may ask at such a path as soon as a later one ends: so that path is served on, also by the next agent.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from partage.edges.host.unix_sockets import is_listening
from partage.errors import InputError, Problem, Unreachable
from partage.model.ids import ResourceName, plugin_socket_name
from partage.model.paths import LONGEST_SOCKET_PATH, check_socket_path
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.kubelet.server import PluginServer


SHORTEN = "choose a shorter --kubelet-dir, or a shorter resource name"
"""Advice for a plugin socket whose path is too long."""


_OURS = re.compile(r"(.+)_partage-[0-9a-f]{6}\.sock")
_ENDING = len("_partage-123456.sock")
_CUT = re.compile(r"(.*)~([0-9a-f]{6})")
"""A name that was cut, with a digest of all of it: others may begin alike. "~" is in no resource name."""
_CUT_ENDING = len("~123456")
_KEPT = ".kept"
"""Ends the name of a mark beside the socket that a kubelet keeps. The mark is a socket file, too, so that a
kubelet that starts removes both."""


class SocketIdentity(Frozen):
    """Tells a socket file from a later one at the same path. Inode numbers are reused soon; the change time
    differs.
    """

    inode: int
    changed_ns: int


def socket_identity(path: Path) -> SocketIdentity | None:
    """The socket at ``path`` now; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return SocketIdentity(status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None


def may_exist(path: Path) -> bool:
    """Whether something may be at ``path``: False only if the file system says that nothing is there."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def fresh_socket(directory: Path, resource: ResourceName) -> Path:
    """A path for a plugin's socket that no kubelet knows: ``nvidia-gpu.shared_partage-3f09a1.sock``.

    NVIDIA's plugin keeps the name without our ending, and "_" is in no resource name. A name that is too long
    is cut (``is_named_after``). Raises InputError for a directory whose path leaves no room.
    """
    stem = plugin_socket_name(resource).removesuffix(".sock")
    room = LONGEST_SOCKET_PATH - len(os.fsencode(directory)) - 1 - _ENDING
    if len(stem) > room:
        stem = f"{stem[: max(room - _CUT_ENDING, 0)]}~{_digest(stem)}"
    while True:
        path = directory / f"{stem}_partage-{os.urandom(3).hex()}.sock"
        check_socket_path(path, SHORTEN)
        if not may_exist(path) and not may_exist(_mark(path)):
            return path


def plain_name(name: str) -> str:
    """The name of a plugin's socket without the ending of ``fresh_socket``."""
    match = _OURS.fullmatch(name)
    return f"{match[1]}.sock" if match else name


def is_named_after(name: str, plain: str) -> bool:
    """Whether a plugin whose socket has this plain name (``plugin_socket_name``) gives it the name, too, also
    cut, as the path of another directory may need it.
    """
    found = plain_name(name)
    cut = _CUT.fullmatch(found.removesuffix(".sock"))
    if cut is None:
        return found == plain
    stem = plain.removesuffix(".sock")
    return stem.startswith(cut[1]) and _digest(stem) == cut[2]


def _digest(stem: str) -> str:
    return hashlib.sha256(stem.encode()).hexdigest()[:6]


def sockets_of(directory: Path, resource: ResourceName) -> dict[Path, SocketIdentity]:
    """The sockets that a plugin of this resource may have made, ours and others'."""
    return _sockets_named(directory, plugin_socket_name(resource))


def _sockets_named(directory: Path, plain: str) -> dict[Path, SocketIdentity]:
    try:
        with os.scandir(directory) as entries:
            paths = [directory / entry.name for entry in entries if is_named_after(entry.name, plain)]
    except OSError:
        return {}
    return {path: identity for path in sorted(paths) if (identity := socket_identity(path)) is not None}


def _mark(path: Path) -> Path:
    return path.with_name(path.name + _KEPT)


def mark_kept(path: Path) -> None:
    """Note, until the kubelet starts again, that it keeps this path. Raises OSError."""
    with suppress(FileExistsError):
        os.mknod(_mark(path), stat.S_IFSOCK | 0o600)


def unmark_kept(path: Path) -> None:
    """Take the note away."""
    with suppress(OSError):
        _mark(path).unlink()


def marked_sockets(directory: Path) -> list[Path]:
    """The paths that the running kubelet keeps, as noted."""
    try:
        marks = sorted(path for path in directory.iterdir() if path.suffix == _KEPT)
    except OSError:
        return []
    return [path.with_suffix("") for path in marks if _OURS.fullmatch(path.stem)]


def check_plugin_sockets(kubelet_dir: Path, resources: Iterable[ResourceName]) -> None:
    """Raise InputError with a problem for each resource whose socket path is too long: ours, or that of
    NVIDIA's plugin in our place.
    """
    problems: list[Problem] = []
    for name in resources:
        try:
            check_socket_path(kubelet_dir / plugin_socket_name(name), SHORTEN)
            fresh_socket(kubelet_dir, name)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)


def remove_socket(path: Path, mine: SocketIdentity | None) -> None:
    """Remove the plugin's socket file, but not one that replaced it."""
    identity = socket_identity(path)
    if identity is not None and mine is not None and identity.inode == mine.inode:
        with suppress(OSError):
            path.unlink()


log = logging.getLogger(__name__)


class KeptSockets:
    """server_at: makes the server of a path. servers: those of the paths that are kept."""

    def __init__(
        self, directory: Path, resource: ResourceName, server_at: Callable[[Path], PluginServer]
    ) -> None:
        self._directory, self._resource, self._server_at = directory, resource, server_at
        self._by: SocketIdentity | None = None
        self._late: SocketIdentity | None = None
        self.servers: list[PluginServer] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Of the socket files."""
        return tuple(server.socket_path.name for server in self.servers)

    @property
    def possible(self) -> bool:
        """Whether the kubelet may have a path in its table for which it watches no stream."""
        return bool(self.servers) or self._late is not None

    def may_answer_late(self, kubelet: SocketIdentity | None) -> None:
        """A Register was given up that this kubelet may answer yet: then it drops what it has."""
        self._late = kubelet

    def keep(self, server: PluginServer, kubelet: SocketIdentity | None) -> None:
        """Go on serving at a path that this kubelet keeps."""
        path = server.socket_path
        log.warning("the kubelet keeps a socket", extra={"resource": self._resource, "socket": path.name})
        self.servers.append(server)
        self._by = kubelet
        try:
            mark_kept(path)
        except OSError as error:
            reason = error.strerror or str(error)
            log.warning("socket cannot be marked", extra={"socket": path.name, "reason": reason})

    async def take_over(self, kubelet: SocketIdentity | None) -> None:
        """Serve what this kubelet keeps of an agent that ran before, and remove what such a one has left."""
        kept = set(marked_sockets(self._directory))
        plain = plugin_socket_name(self._resource)
        paths = {path for path in (*sockets_of(self._directory, self._resource), *kept) if path.name != plain}
        for path in sorted(candidate for candidate in paths if is_named_after(candidate.name, plain)):
            if is_listening(path):
                continue
            if path not in kept:
                path.unlink(missing_ok=True)
                continue
            server = self._server_at(path)
            try:
                await server.start()
            except Unreachable as error:
                log.warning("socket cannot be served", extra={"socket": path.name, "reason": str(error)})
                continue
            self.servers.append(server)
            self._by = kubelet

    async def drop(self, kubelet: SocketIdentity | None) -> None:
        """A kubelet that has started again knows no paths. None: there is no kubelet now."""
        if kubelet is None:
            return
        if self._late != kubelet:
            self._late = None
        if self.servers and self._by != kubelet:
            for server in await self._stopped():
                unmark_kept(server.socket_path)

    async def stop(self) -> None:
        """Serve them no more; the next agent does."""
        await self._stopped()

    async def _stopped(self) -> list[PluginServer]:
        stopped, self.servers = self.servers, []
        for server in stopped:
            await server.stop()
        return stopped

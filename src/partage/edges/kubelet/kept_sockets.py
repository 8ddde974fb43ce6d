"""The sockets of a resource that the kubelet keeps in its table until it starts again: docs/adr/0126.

It may ask at such a path as soon as a later one ends: so that path is served on, also by the next agent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from partage.edges.host.listening import is_listening
from partage.edges.kubelet.server import PluginServer
from partage.edges.kubelet.sockets import (
    SocketIdentity,
    is_named_after,
    mark_kept,
    marked_sockets,
    sockets_of,
    unmark_kept,
)
from partage.errors import Unreachable
from partage.model.ids import ResourceName, plugin_socket_name

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

"""The life of one resource with the kubelet: serve, register, notice a restart of the kubelet, register
again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from partage.edges.directory_changes import DirectoryChanges
from partage.edges.kubelet.other_plugins import OtherPlugin, at_socket, in_directory
from partage.edges.kubelet.port import EndpointState, PluginHandler
from partage.edges.kubelet.registration import (
    KUBELET_SOCKET,
    REGISTER_TIMEOUT_S,
    NextAction,
    ObservedSockets,
    next_action,
    observe_sockets,
    register,
)
from partage.edges.kubelet.server import PluginServer
from partage.edges.kubelet.sockets import SocketIdentity
from partage.edges.ticks import until_tick
from partage.errors import ClusterError, Unreachable
from partage.model.ids import device_of, plugin_socket_name
from partage.values import Frozen

CHECK_S, POLL_S = 1.0, 0.5
"""The two sockets are checked this often, with two calls of stat: where the kernel tells of changes of their
directory, and where it does not.
"""
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 10.0
HAND_OVER_S = 0.2
"""Seconds between the end of an old connection and a new registration. A kubelet that notices the end later
believes that the new registration has ended (kubernetes #121994, fixed late in 2025), and the resource
stays dead until the next registration.
"""
UNWATCHED_S = 10.0
"""Register again if the kubelet has accepted the resource and no ListAndWatch stream has been open for this
long. A kubelet that never opened the stream, or lost it, would count every device as unhealthy for ever.
"""

log = logging.getLogger(__name__)


def pause_s(failures: int) -> float:
    """Seconds to wait after this many failures in a row, at least one: 0.02 s, doubled each time up to 10
    s. A kubelet that has just made its socket listens a moment later.
    """
    return float(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 16), LONGEST_PAUSE_S))


class LastFailure(Frozen):
    """The last failure, and until when to wait.

    need, sockets: what failed, and with which sockets. Another action, or another socket, is tried at once.
    """

    failures: int
    until: float
    need: NextAction
    sockets: ObservedSockets

    def concerns(self, need: NextAction, sockets: ObservedSockets) -> bool:
        """Whether the same is about to be tried again."""
        return (need, sockets) == (self.need, self.sockets)


class ResourceEndpoint:
    """One resource in one plugin directory. ``run`` does everything; ``state`` is the current state."""

    def __init__(
        self,
        handler: PluginHandler,
        kubelet_dir: Path,
        *,
        changes: DirectoryChanges | None = None,
        clock: Callable[[], float] = time.monotonic,
        register_timeout_s: float = REGISTER_TIMEOUT_S,
        takeover: bool = False,
    ) -> None:
        """changes: watches the directory; None: it is only polled. takeover: begin also where another process
        offers the same; it loses the resource.

        Raises InputError if the socket's path would be too long.
        """
        self._resource = handler.resource
        self._kubelet_socket = kubelet_dir / KUBELET_SOCKET
        self._server = PluginServer(handler, kubelet_dir / plugin_socket_name(handler.resource))
        self._changes = changes
        self._changed = asyncio.Event()
        self._handler = handler
        self._takeover = takeover
        self._clock = clock
        self._register_timeout_s = register_timeout_s
        self._known_to: SocketIdentity | None = None
        self._registered_options = self._server.options
        self._watched_s: float | None = None
        self._accepted_s = 0.0
        self._backoff: LastFailure | None = None
        self._state = EndpointState(handler.resource, since=clock())

    @property
    def state(self) -> EndpointState:
        """The current state of the resource."""
        watching = self._server.watching
        unwatched_since = self._watched_s if self._state.registered and not watching else None
        return replace(self._state, watching=watching, unwatched_since=unwatched_since)

    @property
    def socket(self) -> SocketIdentity | None:
        """The socket that it serves now."""
        return self._server.socket

    async def run(self) -> None:
        """Keep the resource served and registered until cancelled; then remove the socket."""
        try:
            while True:
                longest_s = self._watch()
                await self._rest(await self.turn(), longest_s)
        finally:
            self._set_state(replace(self._state, serving=False, registered=False))
            await self._server.stop()

    def _watch(self) -> float:
        """Watch the directory. Returns after how many seconds the sockets have to be checked anyway."""
        self._changed.clear()
        told = self._changes is not None and self._changes.watch(self._kubelet_socket.parent, self._changed)
        return CHECK_S if told else POLL_S

    async def _rest(self, pause_s: float, longest_s: float) -> None:
        """Pause until the directory changes, at most so long."""
        if pause_s >= longest_s:
            await until_tick(longest_s, self._changed)
        else:
            await asyncio.sleep(pause_s)

    async def turn(self) -> float:
        """Check the sockets and do the one action that is needed. Returns the seconds until the next turn;
        infinity if nothing is needed until something changes."""
        sockets = observe_sockets(self._kubelet_socket, self._server.socket_path)
        match self._next_action(sockets):
            case NextAction.NOTHING:
                return math.inf
            case NextAction.WAIT_FOR_KUBELET:
                self._wait_for_kubelet()
                return math.inf
            case need:
                return await self._try(need, sockets)

    def _next_action(self, sockets: ObservedSockets) -> NextAction:
        """The action that the sockets require; if none, the one that only this object knows of."""
        need = next_action(self._server.socket, self._known_to, sockets)
        if need is NextAction.NOTHING and (
            self._lost_stream() or self._server.options != self._registered_options
        ):
            return NextAction.REGISTER
        return need

    def _lost_stream(self) -> bool:
        """Whether this kubelet had enough time to open a stream since it accepted, or since the last one
        ended."""
        if self._server.watching:
            self._watched_s = self._clock()
        if self._watched_s is None:
            return False
        lost = self._clock() - max(self._watched_s, self._accepted_s) > UNWATCHED_S
        if lost:
            log.warning("not watched", extra={"resource": self._resource})
        return lost

    def _wait_for_kubelet(self) -> None:
        self._known_to = self._watched_s = None
        self._set_state(replace(self._state, other=None))
        self._not_registered(f"no kubelet at {self._kubelet_socket}")

    async def _try(self, need: NextAction, sockets: ObservedSockets) -> float:
        """Serve or register, unless that failed just now. Returns the seconds until the next turn."""
        failures = 0
        if self._backoff is not None and self._backoff.concerns(need, sockets):
            left_s = self._backoff.until - self._clock()
            if left_s > 0:
                return left_s
            failures = self._backoff.failures
        try:
            await self._act(need, sockets)
        except ClusterError as error:
            self._not_registered(str(error))
            failures += 1
            self._backoff = LastFailure(failures, self._clock() + pause_s(failures), need, sockets)
            return pause_s(failures)
        self._backoff = None
        return math.inf if need is NextAction.REGISTER else 0.0

    async def _act(self, need: NextAction, sockets: ObservedSockets) -> None:
        """Raises ClusterError."""
        self._give_way(need)
        if need is NextAction.REGISTER:
            await self._register(sockets)
        else:
            await self._serve(need)

    def _give_way(self, need: NextAction) -> None:
        """Raises Unreachable where another process has the resource."""
        other = self._other(need)
        if other is None:
            return
        self._set_state(replace(self._state, serving=need is NextAction.REGISTER, other=other))
        raise Unreachable(str(other), "only one plugin may offer them; partage takeover replaces NVIDIA's")

    def _other(self, need: NextAction) -> OtherPlugin | None:
        """The process that keeps this resource.

        The newest process keeps the socket: two that took it from each other would never come to rest.
        """
        if self._takeover and need is not NextAction.RECLAIM:
            return None
        if need is not NextAction.REGISTER:
            return at_socket(self._resource, self._server.socket_path)
        devices = frozenset(device_of(row.id) for row in self._handler.devices().rows)
        return in_directory(self._resource, devices, self._kubelet_socket.parent)

    async def _serve(self, need: NextAction) -> None:
        self._known_to = self._watched_s = None
        waited = self._state.other is not None
        self._set_state(replace(self._state, serving=False, registered=False, other=None))
        if await self._server.stop() or waited:
            await asyncio.sleep(HAND_OVER_S)
            self._give_way(need)  # a plugin removes our socket a moment before it makes its own
        await self._server.start()
        self._set_state(replace(self._state, serving=True))

    async def _register(self, sockets: ObservedSockets) -> None:
        """Register with the observed kubelet; if it was replaced meanwhile, the next turn registers again."""
        if self._known_to != sockets.kubelet:
            self._watched_s = None
        self._known_to = None  # not known until the kubelet accepts
        self._set_state(replace(self._state, other=None))
        self._registered_options = self._server.options
        self._set_state(replace(self._state, registered=False, attempts=self._state.attempts + 1))
        await register(
            self._kubelet_socket,
            endpoint=self._server.socket_path.name,
            resource=self._resource,
            options=self._registered_options,
            timeout_s=self._register_timeout_s,
        )
        self._takeover = False  # who comes later is newer, and keeps it
        self._known_to, self._accepted_s = sockets.kubelet, self._clock()
        if self._watched_s is None:
            self._watched_s = self._accepted_s  # the kubelet opens the stream now, or never
        registrations = self._state.registrations + 1
        self._set_state(replace(self._state, registered=True, registrations=registrations, last_error=""))
        log.info("registered", extra={"resource": self._resource})

    def _not_registered(self, reason: str) -> None:
        if reason != self._state.last_error:
            log.warning("not registered", extra={"resource": self._resource, "reason": reason})
        self._set_state(replace(self._state, registered=False, last_error=reason))

    def _set_state(self, state: EndpointState) -> None:
        before = self._state.serving, self._state.registered
        changed = (state.serving, state.registered) != before
        self._state = replace(state, since=self._clock()) if changed else state

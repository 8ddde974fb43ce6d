"""The life of one resource with the kubelet: serve, register, notice a restart of the kubelet, register
again.

Each registration has a socket of its own, which no kubelet has seen before, and comes after the end of the
stream before it. What kubelets do otherwise: docs/adr/0126.

It tries again what has failed, a stream that was closed, or a resource that the kubelet has accepted and
whose list it does not read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from partage.edges.host.waiting import DirectoryChanges, until_tick
from partage.edges.kubelet.other_plugins import HANDBACK, OtherPlugin, in_directory, of_resource
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
from partage.edges.kubelet.sockets import (
    KeptSockets,
    SocketIdentity,
    fresh_socket,
    socket_identity,
    sockets_of,
)
from partage.errors import ClusterError, Rejected, Unreachable
from partage.model.ids import device_of
from partage.values import Frozen

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 10.0


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


UNWATCHED_S = 10.0
"""Register again if the kubelet has accepted the resource and opened no ListAndWatch stream for this long: it
would count every device as unhealthy for ever. A stream that ends after so long is replaced at once, one that
ends sooner after a pause.
"""


class StreamWatch:
    """since_s: when the kubelet was last seen to watch, or accepted the resource; None: it has not yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accepted_s = 0.0
        self._short_streams = 0
        self.since_s: float | None = None

    def is_lost(self, server: PluginServer) -> bool:
        """Whether the kubelet has closed its stream, or had enough time to open one since it accepted."""
        if server.watching:
            self.since_s = self._clock()
            return False
        return self.since_s is not None and self.due_s(server) <= 0

    def due_s(self, server: PluginServer) -> float:
        """In how many seconds a resource without a stream is registered again; infinity with one."""
        if self.since_s is None or server.watching:
            return math.inf
        limit_s = UNWATCHED_S
        if server.was_watched:
            limit_s = pause_s(self._short_streams) if self._short_streams else 0.0
        return max(0.0, max(self.since_s, self._accepted_s) + limit_s - self._clock())

    def registering(self) -> None:
        """A kubelet that closes each stream at once is not asked without a pause."""
        short = self.since_s is not None and self._clock() - self._accepted_s < UNWATCHED_S
        self._short_streams = self._short_streams + 1 if short else 0

    def accepted(self) -> None:
        """The kubelet opens the stream now, or never."""
        self._accepted_s = self._clock()
        if self.since_s is None:
            self.since_s = self._accepted_s

    def forget(self) -> None:
        """The kubelet that had accepted the resource has gone."""
        self.since_s = None


CHECK_S, POLL_S = 10.0, 0.5
"""The two sockets are checked this often, with two calls of stat: where the kernel tells of changes of their
directory at once, and where it does not.
"""
_SHORT_S = 1.0
HAND_OVER_S = 0.2
"""Seconds between the end of another plugin and a new registration. A kubelet up to 1.36 that notices the end
later believes that the new registration has ended (kubernetes #121994).
"""
_SETTLED_NS = 2_000_000_000
"""Younger than this, the time of a directory may stand for several changes of it."""
_KEPT_BY_KUBELET = "already connected"
"""What a kubelet from 1.37 on says of a path that is in its table, whichever process listens there now."""

log = logging.getLogger(__name__)


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
        self._directory = kubelet_dir
        self._kubelet_socket = kubelet_dir / KUBELET_SOCKET
        self._changes = changes
        self._changed = asyncio.Event()
        self._handler = handler
        self._takeover = takeover
        self._clock = clock
        self._register_timeout_s = register_timeout_s
        self._server = self._server_at(fresh_socket(kubelet_dir, handler.resource))
        self._told: SocketIdentity | None = None
        self._told_before: SocketIdentity | None = None
        self._known_to: SocketIdentity | None = None
        self._kept = KeptSockets(kubelet_dir, handler.resource, self._server_at)
        self._others: dict[Path, SocketIdentity] = {}
        self._looked_ns = 0
        self._registered_options = self._server.options
        self._stream = StreamWatch(clock)
        self._backoff: LastFailure | None = None
        self._state = EndpointState(handler.resource, since=clock())

    def _server_at(self, path: Path) -> PluginServer:
        return PluginServer(self._handler, path, stream_ended=self._changed.set)

    @property
    def state(self) -> EndpointState:
        """The current state of the resource."""
        watching = self._server.watching if self._state.other is None else 0
        unwatched_since = self._stream.since_s if self._state.registered and not watching else None
        return replace(self._state, watching=watching, unwatched_since=unwatched_since, kept=self._kept.names)

    @property
    def sockets(self) -> list[SocketIdentity]:
        """The sockets that it serves now."""
        served = (self._server, *self._kept.servers)
        return [server.socket for server in served if server.socket is not None]

    async def run(self) -> None:
        """Keep the resource served and registered until cancelled; then remove the sockets."""
        try:
            await self._kept.take_over(socket_identity(self._kubelet_socket))
            while True:
                longest_s = self._watch()
                await self._rest(await self.turn(), longest_s)
        finally:
            self._set_state(replace(self._state, serving=False, registered=False))
            await self.stop()

    async def stop(self) -> None:
        """Serve no more. A kubelet that may keep the last list is told that nothing can be given."""
        await self._leave(unhealthy=self._tangled)
        await self._kept.stop()

    @property
    def _tangled(self) -> bool:
        """Whether this kubelet may have a path of ours in its table for which it watches no stream."""
        return self._kept.possible or self._server.asked_again

    def _watch(self) -> float:
        """Watch the directory. Returns after how many seconds the sockets have to be checked anyway."""
        self._changed.clear()
        told = self._changes is not None and self._changes.watch(self._directory, self._changed)
        return CHECK_S if told else POLL_S

    async def _rest(self, pause_s: float, longest_s: float) -> None:
        """Pause until the directory changes, at most so long. A short pause is not cut short."""
        if pause_s >= min(longest_s, _SHORT_S):
            await until_tick(min(pause_s, longest_s), self._changed)
        else:
            await asyncio.sleep(pause_s)

    async def turn(self) -> float:
        """Check the sockets and do the one action that is needed. Returns the seconds until the next turn;
        infinity if nothing is needed until something changes."""
        sockets = self._observed()
        await self._kept.drop(sockets.kubelet)
        match self._next_action(sockets):
            case NextAction.NOTHING:
                return self._stream.due_s(self._server)
            case NextAction.WAIT_FOR_KUBELET:
                self._wait_for_kubelet()
                return math.inf
            case need:
                return await self._try(need, sockets)

    def _observed(self) -> ObservedSockets:
        """The sockets as they are. Those of others are looked for only if the directory has changed."""
        try:
            changed_ns = self._directory.stat().st_mtime_ns
        except OSError:
            changed_ns = 0
        if changed_ns != self._looked_ns or time.time_ns() - changed_ns < _SETTLED_NS:
            self._looked_ns = changed_ns
            asking = self._directory / HANDBACK  # the first: then the stream ends also where another is there
            identity = socket_identity(asking)
            self._others = {} if identity is None else {asking: identity}
            self._others |= sockets_of(self._directory, self._resource)
        ours = {server.socket_path for server in (self._server, *self._kept.servers)}
        self._others = {path: one for path, one in self._others.items() if path not in ours}
        others = frozenset(self._others.values())
        return observe_sockets(self._kubelet_socket, self._server.socket_path, others)

    def _next_action(self, sockets: ObservedSockets) -> NextAction:
        """The action that the sockets require; if none, the one that only this object knows of."""
        need = next_action(self._server.socket, self._known_to, sockets)
        if need is NextAction.NOTHING and (
            self._lost_stream()
            or self._server.options != self._registered_options
            or self._server.asked_again
            or self._newer() is not None
        ):
            return NextAction.REGISTER
        return need

    def _lost_stream(self) -> bool:
        lost = self._stream.is_lost(self._server)
        if lost:
            log.warning("not watched", extra={"resource": self._resource})
        return lost

    def _wait_for_kubelet(self) -> None:
        self._known_to = None
        self._stream.forget()
        self._set_state(replace(self._state, other=None))
        self._not_registered(f"no kubelet at {self._kubelet_socket}")

    async def _try(self, need: NextAction, sockets: ObservedSockets) -> float:
        """Serve or register, unless that failed just now. Returns the seconds until the next turn."""
        failures = 0
        sockets = replace(sockets, own=None)  # each try has another one
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
        return self._stream.due_s(self._server) if need is NextAction.REGISTER else 0.0

    async def _act(self, need: NextAction, sockets: ObservedSockets) -> None:
        """Raises ClusterError."""
        await self._give_way(need)
        if need is NextAction.SERVE or self._told is not None or self._state.other is not None:
            await self._serve()
        if need is NextAction.REGISTER:
            await self._register(sockets)

    # --- other plugins ------------------------------------------------------------------------

    async def _give_way(self, need: NextAction) -> None:
        """Raises Unreachable where another process has the resource.

        A stream that is open stays open, and silent: a kubelet up to 1.36 that has accepted the other plugin
        would take the end of ours for the end of the other one. For ``partage handback`` it ends, before
        NVIDIA's plugin registers.
        """
        other = self._other(need)
        if other is None:
            return
        if other.socket.name == HANDBACK:
            await self._leave(unhealthy=self._tangled)
        self._server.freeze()
        self._known_to = None
        serving = self._server.socket is not None
        self._set_state(replace(self._state, serving=serving, other=other))
        raise Unreachable(str(other), "only one plugin may offer them; partage takeover replaces NVIDIA's")

    def _other(self, need: NextAction) -> OtherPlugin | None:
        """The process that keeps this resource.

        The newest process keeps it: two that took it from each other would never come to rest.
        """
        if self._state.other is not None or (need is NextAction.SERVE and not self._takeover):
            other = of_resource(self._resource, self._others, newer_than=None)
        else:
            other = self._newer()
        if other is not None or self._takeover or need is not NextAction.REGISTER:
            return other
        devices = frozenset(device_of(row.id) for row in self._handler.devices().rows)
        return in_directory(self._resource, devices, self._directory)

    def _newer(self) -> OtherPlugin | None:
        """A process that has begun to offer the resource later than this one."""
        if self._server.socket is None:
            return None
        return of_resource(self._resource, self._others, newer_than=self._server.socket)

    # --- serving and registering --------------------------------------------------------------

    async def _serve(self) -> None:
        """Serve at a path that no kubelet knows. The stream at the path before has ended then."""
        self._known_to = None
        waited = self._state.other is not None
        self._set_state(replace(self._state, serving=False, registered=False, other=None))
        await self._leave(unhealthy=False)
        if waited:
            await asyncio.sleep(HAND_OVER_S)
            self._observed()
            await self._give_way(NextAction.SERVE)  # a plugin that starts again is away for a moment
        self._server, self._told = self._server_at(fresh_socket(self._directory, self._resource)), None
        await self._server.start()
        self._set_state(replace(self._state, serving=True))

    async def _leave(self, *, unhealthy: bool) -> None:
        """End the stream, wait for the kubelet to hang up, and serve no more, unless it keeps the path."""
        server = self._server
        if server.socket is None:
            return
        refused = server.asked_again
        hung_up = await server.end_streams(unhealthy=unhealthy)
        if refused and not hung_up and self._told == socket_identity(self._kubelet_socket):
            self._keep()
        else:
            await server.stop()

    async def _register(self, sockets: ObservedSockets) -> None:
        """Register with the observed kubelet; if it was replaced meanwhile, the next turn registers again."""
        self._stream.registering()
        if self._told_before != sockets.kubelet:
            self._stream.forget()
        self._known_to = None  # not known until the kubelet accepts
        self._told = self._told_before = sockets.kubelet
        self._registered_options = self._server.options
        self._set_state(replace(self._state, registered=False, other=None, attempts=self._state.attempts + 1))
        self._handler.registering()
        try:
            await register(
                self._kubelet_socket,
                endpoint=self._server.socket_path.name,
                resource=self._resource,
                options=self._registered_options,
                timeout_s=self._register_timeout_s,
            )
        except Rejected as error:
            if _KEPT_BY_KUBELET in str(error):
                self._keep()
            raise
        except Unreachable as error:
            if isinstance(error.__cause__, TimeoutError):
                self._kept.may_answer_late(sockets.kubelet)
            raise
        self._takeover = False  # who comes later is newer, and keeps it
        self._known_to = sockets.kubelet
        self._stream.accepted()
        registrations = self._state.registrations + 1
        self._set_state(replace(self._state, registered=True, registrations=registrations, last_error=""))
        log.info("registered", extra={"resource": self._resource})

    def _keep(self) -> None:
        """Leave the current path to the kubelet that keeps it, and go on at another."""
        self._kept.keep(self._server, self._told)
        self._server = self._server_at(fresh_socket(self._directory, self._resource))
        self._told = None

    def _not_registered(self, reason: str) -> None:
        if reason != self._state.last_error:
            log.warning("not registered", extra={"resource": self._resource, "reason": reason})
        self._set_state(replace(self._state, registered=False, last_error=reason))

    def _set_state(self, state: EndpointState) -> None:
        before = self._state.serving, self._state.registered
        changed = (state.serving, state.registered) != before
        self._state = replace(state, since=self._clock()) if changed else state

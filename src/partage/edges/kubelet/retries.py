"""When a plugin tries again: what has failed, a stream that was closed, or a resource that the kubelet has
accepted and whose list it does not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from partage.edges.kubelet.registration import NextAction, ObservedSockets
from partage.edges.kubelet.server import PluginServer
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

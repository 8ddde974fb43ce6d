"""When a plugin tries again what has failed, or a stream that was closed."""

from __future__ import annotations

from partage.edges.kubelet.registration import NextAction, ObservedSockets
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

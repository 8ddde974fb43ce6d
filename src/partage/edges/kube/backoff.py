"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_S, LONGEST_S = 0.5, 30.0
"""Between two attempts while the API server is away, in seconds: twice as long each time, with jitter, so
that the nodes of a fleet do not come back at one moment. client-go waits as long."""


class Backoff:
    """Pauses that grow from FIRST_S to LONGEST_S. jitter: a number from 0 to 1, random by default."""

    def __init__(
        self,
        first_s: float = FIRST_S,
        longest_s: float = LONGEST_S,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._first_s, self._longest_s, self._jitter = first_s, longest_s, jitter
        self._next_s = first_s

    def pause_s(self, at_least_s: float = 0.0) -> float:
        """The next pause: a half to the whole of what it has grown to. at_least_s: of Retry-After."""
        pause_s = self._next_s * (1 + self._jitter()) / 2
        self._next_s = min(self._next_s * 2, self._longest_s)
        return max(pause_s, at_least_s)

    def reset(self) -> None:
        """After a success."""
        self._next_s = self._first_s

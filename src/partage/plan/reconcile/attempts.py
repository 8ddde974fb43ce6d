"""Failed attempts, and when they are retried. Pure: the caller passes the time."""

from __future__ import annotations

from partage.values import Frozen

LONGEST_PAUSE_S = 60.0
"""Between two attempts; each pause is twice the one before."""


class FailedAttempt(Frozen):
    """The last attempt to change a GPU failed.

    reason: why, a sentence. tries: how often in a row. again_s: when it is retried, on the agent's clock.
    renew: ids of GPU instances that must be made again, because the driver has no room in them.
    """

    reason: str
    tries: int
    again_s: float
    renew: frozenset[int] = frozenset()


def pause_s(tries: int, first_s: float) -> float:
    """How long to wait after so many failures in a row, in seconds."""
    doublings = min(tries - 1, 16)  # 2**16 s is far beyond the longest pause, and a float can hold it
    return min(LONGEST_PAUSE_S, first_s * (1 << doublings))


def failed_again(last: FailedAttempt | None, reason: str, now_s: float, first_s: float) -> FailedAttempt:
    """One more failure after ``last``. first_s: the first pause, in seconds."""
    tries = last.tries + 1 if last else 1
    return FailedAttempt(reason, tries, now_s + pause_s(tries, first_s), last.renew if last else frozenset())

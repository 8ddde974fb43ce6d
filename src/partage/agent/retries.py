"""What the hardware refused though nobody was in the way, and when it is tried again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

LONGEST_PAUSE_S = 60.0
"""Between two attempts, each pause twice the one before."""


def pause_s(tries: int, first_s: float) -> float:
    """How long to wait after so many failures in a row, in seconds."""
    doublings = min(tries - 1, 16)  # of a GPU that failed for a day, more are more than a float can hold
    return min(LONGEST_PAUSE_S, first_s * (1 << doublings))


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Why a GPU is not as wanted.

    again_s: when it is tried again. renew: ids of its GPU instances that have to be made anew for that.
    """

    reason: str
    tries: int
    again_s: float
    renew: frozenset[int] = frozenset()


@dataclass(slots=True)
class Retries:
    """By GPU UUID. first_s: the first pause."""

    clock: Callable[[], float]
    first_s: float
    _by_gpu: dict[str, FailedAttempt] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Why, in words."""
        return {gpu: failure.reason for gpu, failure in self._by_gpu.items()}

    @property
    def renew(self) -> dict[str, frozenset[int]]:
        """GPU instances that are not to be reused."""
        return {gpu: failure.renew for gpu, failure in self._by_gpu.items()}

    def note(self, gpus: Iterable[str], reason: str) -> None:
        """It failed, once more."""
        for gpu in gpus:
            tries = self._by_gpu[gpu].tries + 1 if gpu in self._by_gpu else 1
            self._by_gpu[gpu] = FailedAttempt(reason, tries, self.clock() + pause_s(tries, self.first_s))

    def note_tight(self, tight: Mapping[str, frozenset[int]]) -> None:
        """GPU instances that had no room for a compute instance are made anew next time."""
        for gpu in tight.keys() & self._by_gpu.keys():
            self._by_gpu[gpu] = replace(self._by_gpu[gpu], renew=tight[gpu])

    def is_due(self, gpu: str) -> bool:
        """It did not fail a moment ago."""
        return gpu not in self._by_gpu or self._by_gpu[gpu].again_s <= self.clock()

    def forget(self, gpus: Iterable[str]) -> None:
        """These are as wanted."""
        for gpu in gpus:
            self._by_gpu.pop(gpu, None)

    def keep(self, gpus: Collection[str]) -> None:
        """Of the others nothing is wanted any more."""
        self._by_gpu = {gpu: failure for gpu, failure in self._by_gpu.items() if gpu in gpus}

"""The course of a run's use in a few numbers: lowest and highest of parts of equal length. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from msgspec import Struct

MOST_PARTS = 24
"""When there are so many, each two become one. The first tenth of a run, which does not count for its
steadiness, is up to a sixth of it so."""


class Curve(Struct):
    """lows, highs: of each part, in bytes. width: samples in a part; last: in the last one."""

    lows: array[int]
    highs: array[int]
    width: int = 1
    last: int = 0

    @classmethod
    def of(cls, lows: Iterable[int] = (), highs: Iterable[int] = (), width: int = 1, last: int = 0) -> Curve:
        """From plain numbers."""
        return cls(array("q", lows), array("q", highs), width, last)

    def add(self, used_bytes: int) -> None:
        """The next sample."""
        if self.highs and self.last < self.width:
            self.lows[-1] = min(self.lows[-1], used_bytes)
            self.highs[-1] = max(self.highs[-1], used_bytes)
            self.last += 1
            return
        if len(self.highs) == MOST_PARTS:
            self.lows = array("q", map(min, self.lows[::2], self.lows[1::2]))
            self.highs = array("q", map(max, self.highs[::2], self.highs[1::2]))
            self.width *= 2
        self.lows.append(used_bytes)
        self.highs.append(used_bytes)
        self.last = 1

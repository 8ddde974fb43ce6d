"""The placement of a GPU instance on its GPU, in memory slices."""

from __future__ import annotations

from partage.values import Frozen


class Placement(Frozen, order=True):
    """The memory slices of one GPU instance.

    start: first memory slice, from 0.
    size:  number of memory slices, at least 1. Not the "3" of a 3g profile: on an H100 a 3g instance has 4
    of the 8 memory slices.

    Raises ValueError for other numbers. Source: nvml.h, nvmlGpuInstancePlacement_t.
    """

    start: int
    size: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.size < 1:
            raise ValueError(f"not a placement: start {self.start}, size {self.size}")

    @property
    def slices(self) -> range:
        """The memory slices."""
        return range(self.start, self.start + self.size)

    def overlaps(self, other: Placement) -> bool:
        """Whether both contain the same memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"

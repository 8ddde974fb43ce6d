"""Where a GPU instance sits on its GPU, in memory slices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """The memory slices that one GPU instance occupies.

    start: index of the first memory slice, 0-based.
    size:  number of memory slices, at least 1. Not the "3" of a 3g profile: on an H100 a 3g
           instance occupies 4 of the 8 slices.

    Raises ValueError for anything else. Source: nvml.h, nvmlGpuInstancePlacement_t.
    """

    start: int
    size: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.size < 1:
            raise ValueError(f"no placement: start {self.start}, size {self.size}")

    @property
    def slices(self) -> range:
        """The occupied memory slices."""
        return range(self.start, self.start + self.size)

    def overlaps(self, other: Placement) -> bool:
        """Whether the two share a memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"

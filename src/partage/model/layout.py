"""What sits, or should sit, on one GPU under MIG; whether it fits, and why not."""

from __future__ import annotations

from dataclasses import dataclass

from partage.model.profile import MigProfile


@dataclass(frozen=True, slots=True)
class LayoutItem:
    """One wanted MIG device. start: its first memory slice where it is fixed (``3g.40gb@4``), else None."""

    profile: MigProfile
    start: int | None = None

    @classmethod
    def parse(cls, text: str) -> LayoutItem:
        """Inverse of ``str``. Raises ValueError."""
        name, at, start = text.partition("@")
        if at and not (start.isascii() and start.isdigit() and len(start) <= 2):
            raise ValueError(f"{text!r}: after '@' stands the first memory slice, a number")
        return cls(MigProfile.parse(name), int(start) if at else None)

    def __str__(self) -> str:
        return str(self.profile) if self.start is None else f"{self.profile}@{self.start}"

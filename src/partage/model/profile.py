"""MIG profile names: ``3g.40gb``, ``1g.10gb+me``, ``1c.3g.40gb``, ``1g.24gb-me``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROFILE = re.compile(
    r"(?:(?P<c>\d+)c\.)?(?P<g>\d+)g\.(?P<gb>\d+)gb(?:\+(?P<plus>[a-z][a-z0-9.,]*)|(?P<minus>-me))?", re.ASCII
)
_LONGEST = 40


@dataclass(frozen=True, slots=True, order=True)
class MigProfile:
    """A MIG device's kind, by name.

    compute_slices: the ``1`` of ``1c.3g.40gb``, equal to gpu_slices where no ``c`` is written.
    gpu_slices: the ``3``; gigabytes: the ``40``, a rounded share, not the real memory.
    attributes: ``("me",)`` for ``+me``, ``("-me",)`` for ``-me``; sorted.
    Grammar: facts of mig-parted's format; Raises ValueError by ``parse`` for anything else.
    """

    gpu_slices: int
    gigabytes: int
    compute_slices: int
    attributes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> MigProfile:
        """Inverse of ``str``; a redundant ``c`` (``3c.3g.40gb``) is dropped."""
        match = _PROFILE.fullmatch(text) if len(text) <= _LONGEST else None
        if match is None:
            raise ValueError(f"{text[:_LONGEST]!r} is not a MIG profile such as 3g.40gb or 1g.10gb+me")
        g, c = int(match["g"]), int(match["c"] or match["g"])
        plus = tuple(sorted(set((match["plus"] or "").split(",")) - {""}))
        if not 1 <= c <= g or (match["plus"] is not None and not plus):
            raise ValueError(f"{text!r} is not a MIG profile: {c} compute slices of {g}")
        return cls(g, int(match["gb"]), c, ("-me",) if match["minus"] else plus)

    @property
    def gpu_instance(self) -> MigProfile:
        """The profile of the GPU instance that holds it: ``3g.40gb`` for ``1c.3g.40gb``."""
        return MigProfile(self.gpu_slices, self.gigabytes, self.gpu_slices, self.attributes)

    @property
    def resource_suffix(self) -> str:
        """How it stands in a resource name: ``mig-1g.10gb.me`` (``+`` becomes ``.``, ``-me`` stays)."""
        return f"mig-{self}".replace("+", ".").replace(",", ".")

    def __str__(self) -> str:
        c = "" if self.compute_slices == self.gpu_slices else f"{self.compute_slices}c."
        tail = ",".join(self.attributes)
        if tail and tail != "-me":
            tail = f"+{tail}"
        return f"{c}{self.gpu_slices}g.{self.gigabytes}gb{tail}"

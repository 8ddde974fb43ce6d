"""Names of MIG profiles: ``3g.40gb``, ``1g.10gb+me``, ``1c.3g.40gb``, ``1g.24gb-me``."""

from __future__ import annotations

import re

from partage.units import GIB
from partage.values import Frozen

_PROFILE = re.compile(
    r"(?:(?P<c>\d+)c\.)?(?P<g>\d+)g\.(?P<gb>\d+)gb(?:\+(?P<plus>[a-z][a-z0-9.,]*)|(?P<minus>-me))?", re.ASCII
)
_LONGEST = 40


class MigProfile(Frozen, order=True):
    """A MIG profile, as its name has it.

    compute_slices: the ``1`` of ``1c.3g.40gb``; equal to gpu_slices if there is no ``c``.
    gpu_slices: the ``3``. gigabytes: the ``40``, a rounded part of the GPU's memory, not the real size.
    attributes: ``("me",)`` for ``+me``, ``("-me",)`` for ``-me``; sorted.
    """

    gpu_slices: int
    gigabytes: int
    compute_slices: int
    attributes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> MigProfile:
        """Inverse of ``str``; a redundant ``c`` (``3c.3g.40gb``) is dropped. Raises ValueError."""
        match = _PROFILE.fullmatch(text) if len(text) <= _LONGEST else None
        if match is None:
            fits = len(text) < _LONGEST and _PROFILE.fullmatch(meant := f"{text.lower().removesuffix('b')}b")
            hint = f": did you mean {meant!r}?" if fits else ""
            raise ValueError(f"{text[:_LONGEST]!r} is not a MIG profile such as 3g.40gb or 1g.10gb+me{hint}")
        g, c = int(match["g"]), int(match["c"] or match["g"])
        plus = tuple(sorted(set((match["plus"] or "").split(",")) - {""}))
        if not 1 <= c <= g or (match["plus"] is not None and not plus):
            raise ValueError(f"{text!r} is not a MIG profile: {c} compute slices of {g}")
        return cls(g, int(match["gb"]), c, ("-me",) if match["minus"] else plus)

    @property
    def gpu_instance(self) -> MigProfile:
        """The profile of its GPU instance: ``3g.40gb`` for ``1c.3g.40gb``."""
        return MigProfile(self.gpu_slices, self.gigabytes, self.gpu_slices, self.attributes)

    def __str__(self) -> str:
        c = "" if self.compute_slices == self.gpu_slices else f"{self.compute_slices}c."
        tail = ",".join(self.attributes)
        if tail and tail != "-me":
            tail = f"+{tail}"
        return f"{c}{self.gpu_slices}g.{self.gigabytes}gb{tail}"


def named_gigabytes(instance_bytes: int, total_bytes: int) -> int:
    """The ``40`` in 3g.40gb, as NVIDIA's tools compute it. instance_bytes: memory of the GPU instance;
    total_bytes: memory of the GPU.

    The instance's memory in eighths of the total, rounded up, times the total in whole GiB, rounded up;
    halves are rounded up (1g of 180 GiB: 22.5, so 1g.23gb; Python's ``round`` gives 22). It is not the real
    memory: 1g.12gb of an H100 NVL has 10.75 GiB. Integrated GPUs report a total of 0: ``1g.0gb``.
    """
    if total_bytes <= 0:
        return 0
    eighths = -(-instance_bytes * 8 // total_bytes)
    total_gib = -(-total_bytes // GIB)
    return (eighths * total_gib + 4) // 8

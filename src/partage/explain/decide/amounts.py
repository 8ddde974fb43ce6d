"""Amounts of resources: as people write them, and who has to end so that enough is free."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from partage.text import count_of
from partage.units import format_bytes, format_exactly
from partage.values import Frozen

Holder = TypeVar("Holder", bound=Hashable)


def fewest(counts: Mapping[Holder, int], missing: int) -> tuple[Holder, ...] | None:
    """The fewest holders that hold so much together: of single ones the smallest that is enough, else the
    largest ones. None: all of them together are not enough.
    """
    if missing <= 0:
        return ()
    ordered = sorted(counts, key=lambda who: (counts[who], str(who)))
    alone = next((who for who in ordered if counts[who] >= missing), None)
    if alone is not None:
        return (alone,)
    chosen: list[Holder] = []
    for who in reversed(ordered):
        if missing <= 0:
            break
        chosen.append(who)
        missing -= counts[who]
    return tuple(chosen) if missing <= 0 else None


CPU, MEMORY, STORAGE, PODS = "cpu", "memory", "ephemeral-storage", "pods"


class Unit(Frozen):
    """In what a resource is counted. bytes: of memory; 0: of things, CPUs or bytes, as its name says."""

    resource: str
    bytes: int = 0

    def text(self, amount: int) -> str:
        """``2 x nvidia.com/gpu``, ``5 GiB of aliyun.com/gpu-mem``, ``1.5 CPUs``."""
        if self.bytes:
            return f"{self.bare(amount)} of {self.resource}"
        return _plain(self.resource, amount) or f"{amount} x {self.resource}"

    def bare(self, amount: int) -> str:
        """The same without the resource's name, where that has been said."""
        if self.bytes:
            return format_exactly(amount * self.bytes)
        return _plain(self.resource, amount) or str(amount)


def _plain(resource: str, amount: int) -> str:
    if resource == CPU:
        shown = f"{amount / 1000:g}"
        return f"{shown} {'CPU' if shown == '1' else 'CPUs'}"
    if resource in (MEMORY, STORAGE):
        return f"{format_bytes(amount)} of {'memory' if resource == MEMORY else 'ephemeral storage'}"
    return count_of(amount, "pod") if resource == PODS else ""


def request_text(resource: str, amount: int) -> str:
    """As it stands in a manifest: ``nvidia.com/gpu: 1``, ``cpu: 500m``."""
    if resource == CPU and amount % 1000:
        return f"{resource}: {amount}m"
    return f"{resource}: {amount // 1000 if resource == CPU else amount}"

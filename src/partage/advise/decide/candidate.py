"""A strategy for a situation: one that can be had, with its policy, or one that cannot, with why."""

from __future__ import annotations

from partage.advise.decide.situation import GpuFacts, Situation, Way
from partage.model.geometry import ProfileSpec
from partage.model.ids import ResourceName
from partage.model.layout import LayoutItem
from partage.model.policy import GpuEntry, Policy
from partage.model.share import Guarantee
from partage.values import Frozen

LARGER = "a GPU with more memory"
FEWER_OR_NEWER = "fewer tenants on each GPU, or a newer driver or GPU"


def fewer_or_larger(situation: Situation, facts: GpuFacts) -> str:
    """What helps where a tenant gets too little memory: fewer tenants only if one alone would have enough."""
    if situation.tenants == 1 or situation.largest_bytes > facts.gpu.memory_bytes:
        return LARGER
    return f"fewer tenants on each GPU, or {LARGER}"


class Ask(Frozen):
    """What one tenant asks for. needs_bytes: what it needs; memory_bytes: what it gets with that."""

    needs_bytes: int
    resource: ResourceName
    count: int
    memory_bytes: int


class Candidate(Frozen):
    """A strategy that can be had. entry: of the policy.

    shares, memory_bytes, threads_percent, guarantee, resource: what the policy offers on one GPU, as
    ``plan/offer`` resolves it; memory and guarantee of the smallest and weakest share. For a vGPU: what the
    policy offers inside of each virtual machine, and shares is the number of machines. profile: of the MIG
    devices, where they are equal. asks: what each tenant asks for, the largest first, where their sizes
    differ; else empty.
    """

    way: Way
    entry: GpuEntry
    shares: int
    memory_bytes: int
    guarantee: Guarantee
    resource: ResourceName
    threads_percent: int | None = None
    profile: ProfileSpec | None = None
    asks: tuple[Ask, ...] = ()

    @property
    def layout(self) -> tuple[LayoutItem, ...]:
        """The MIG devices of the policy."""
        return () if self.entry.mig is None else self.entry.mig.items

    @property
    def policy(self) -> Policy:
        """The policy of this one entry."""
        return Policy(entries=(self.entry,))


class WayRefusal(Frozen):
    """A strategy that cannot be had. why: half a sentence. hint: what would make it possible."""

    way: Way
    why: str
    hint: str = ""

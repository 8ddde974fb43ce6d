"""A strategy for a situation: one that can be had, with its policy, or one that cannot, with why."""

from __future__ import annotations

from partage.advise.decide.situation import GpuFacts, Situation, Way
from partage.model.ids import ResourceName
from partage.model.layout import LayoutItem
from partage.model.policy import GpuEntry, Policy
from partage.model.share import Guarantee
from partage.values import Answer, Frozen

LARGER = "a GPU with more memory"
FEWER_OR_NEWER = "fewer tenants on each GPU, or a newer driver or GPU"


def fewer_or_larger(situation: Situation, facts: GpuFacts) -> str:
    """What helps where a tenant gets too little memory: fewer tenants only if one alone would have enough."""
    if situation.tenants == 1 or situation.largest_bytes > facts.gpu.memory_bytes:
        return LARGER
    return f"fewer tenants on each GPU, or {LARGER}"


class Ask(Answer):
    """What one tenant asks for. needs_bytes: of memory. count: of the resource. memory_bytes: it then has."""

    needs_bytes: int
    resource: ResourceName
    count: int
    memory_bytes: int


class TenantShare(Answer):
    """What each tenant gets, as the policy offers it on one GPU of this model.

    shares: on one GPU; for a vGPU: the number of virtual machines. resource: what a container asks for.
    memory_bytes: of the smallest share. threads_percent: of the multiprocessors, under MPS. profile: of the
    MIG device. guarantee: about its memory; means: what that is, in words. asks: what each tenant asks for,
    the largest first, where their sizes differ; else empty.
    """

    shares: int
    resource: ResourceName
    memory_bytes: int
    threads_percent: int | None
    profile: str | None
    guarantee: Guarantee
    means: str
    asks: tuple[Ask, ...]


class Candidate(Frozen):
    """A strategy that can be had. entry: of the policy. share: as ``plan/offer`` resolves the entry; the
    guarantee is that of the weakest share, and the profile is None where they differ.
    """

    way: Way
    entry: GpuEntry
    share: TenantShare

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

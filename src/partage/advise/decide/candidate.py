"""A strategy for a situation: one that can be had, with its policy in Partage's format, or one that cannot,
with why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partage.advise.decide.situation import GpuFacts, Situation, Way
from partage.model.ids import ResourceName
from partage.model.layout import LayoutItem
from partage.model.policy import Exclusive, GpuCriteria, GpuEntry, Mps, Policy, Sharing, TimeSlicing
from partage.model.share import Guarantee
from partage.plan.offer.memory_units import units_of
from partage.units import GIB
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


def policy_of_entry(entry: GpuEntry) -> dict[str, Any]:
    """The policy of an entry that selects a model, or the GPUs of a virtual machine."""
    return {"version": "partage/v1", "gpus": [_entry(entry)]}


def policy_of_all(policies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One policy of several that have one entry each. Entries that are alike are there once."""
    rows = [row for policy in policies for row in policy["gpus"]]
    return {"version": "partage/v1", "gpus": [row for n, row in enumerate(rows) if row not in rows[:n]]}


def _entry(entry: GpuEntry) -> dict[str, Any]:
    select = {"model": list(entry.select.model)} if isinstance(entry.select, GpuCriteria) else "rest"
    if entry.mig is not None:
        return {"select": select, "mig": {"layout": [str(item) for item in entry.mig.items]}}
    return {"select": select, **_sharing(entry.sharing)}


def _sharing(sharing: Sharing) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if units := units_of(sharing):
        keys["unit"] = f"{units.unit_bytes // GIB}Gi"
    elif not isinstance(sharing, Exclusive):
        keys["replicas"] = sharing.replicas
    if isinstance(sharing, TimeSlicing) and sharing.interval is not None:
        keys["interval"] = str(sharing.interval)
    if isinstance(sharing, Mps) and sharing.protocol >= 3:
        keys["protocol"] = sharing.protocol
    return {sharing.strategy.value: keys}

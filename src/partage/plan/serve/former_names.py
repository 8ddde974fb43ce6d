"""Containers that have given an id up, and that PodResources may still list with it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from msgspec.structs import replace

from partage.model.ids import ResourceName, ShareId
from partage.plan.serve.ledger_entry import Holder
from partage.values import Frozen

_NOBODY: frozenset[Holder] = frozenset()


class _Former(Frozen):
    """Containers that released an id at since_s or before and are still listed with it.

    free: the kubelet reported the id as free and has not allocated it since: every name is out of date.
    """

    holders: frozenset[Holder]
    since_s: float
    free: bool = False


class FormerNames:
    """The former names of each id, by resource."""

    def __init__(self) -> None:
        self._by_id: dict[ResourceName, dict[ShareId, _Former]] = {}

    @property
    def resources(self) -> Collection[ResourceName]:
        """Those with an id that has former names."""
        return self._by_id.keys()

    def find(self, resource: ResourceName, share: ShareId) -> _Former | None:
        """The former names of one id."""
        return self._by_id.get(resource, {}).get(share)

    def holders(self, resource: ResourceName, share: ShareId) -> frozenset[Holder]:
        """The containers that are listed with an id and have given it up."""
        found = self.find(resource, share)
        return found.holders if found else _NOBODY

    def since_s(self, resource: ResourceName, share: ShareId) -> float:
        """When the id was given up; minus infinity if nobody is known who has."""
        found = self.find(resource, share)
        return found.since_s if found else -inf

    def remember(
        self,
        resource: ResourceName,
        share: ShareId,
        holders: frozenset[Holder],
        since_s: float,
        *,
        free: bool = False,
    ) -> None:
        """In place of those of before."""
        self._put(resource, share, _Former(holders, since_s, free))

    def rename(self, resource: ResourceName, share: ShareId, holders: frozenset[Holder]) -> None:
        """Of an id that has former names: these are all. Raises KeyError for another one."""
        self._put(resource, share, replace(self._by_id[resource][share], holders=holders))

    def still_named(self, resource: ResourceName, share: ShareId, named: set[Holder]) -> frozenset[Holder]:
        """Those that have been listed ever since; others are forgotten and would count as new."""
        found = self.find(resource, share)
        if found is None:
            return _NOBODY
        still = found.holders & named
        if still != found.holders:
            self.rename(resource, share, still)
        return still

    def forget_unnamed(self, resource: ResourceName, named: Collection[ShareId], asked_s: float) -> None:
        """An answer to a question of asked_s lists these ids of the resource, and nobody with others."""
        by_id = self._by_id.get(resource, {})
        for share in [share for share, one in by_id.items() if share not in named and one.since_s < asked_s]:
            del by_id[share]

    def _put(self, resource: ResourceName, share: ShareId, former: _Former) -> None:
        if former.holders or former.free:
            self._by_id.setdefault(resource, {})[share] = former
        else:
            self._by_id.get(resource, {}).pop(share, None)

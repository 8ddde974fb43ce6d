"""What a scheduler looks at, followed in the whole cluster: nodes, pods that have not ended, slices of one
driver, claims and device classes. Slices, claims and classes stay JSON here, in which they take least memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, Protocol

from msgspec import Raw

from partage.edges.host.own_task import unending
from partage.edges.kube.connection import PAGE, Connection
from partage.edges.kube.objects import Amounts, Meta, Page, PodSpec
from partage.edges.kube.reading import NODES, PODS
from partage.edges.kube.watch import Collection, CollectionState, CollectionWatch
from partage.model.pod import Pod, ScheduledNode, ScheduledPod
from partage.units import MIB, parse_quantity
from partage.values import Frozen

_RESOURCES = "/apis/resource.k8s.io/v1"
_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
_PRODUCT = "nvidia.com/gpu.product"

KINDS = ("nodes", "pods", "slices", "claims", "classes")
"""Of objects that are followed."""


class ApiObject(Frozen):
    """An object as JSON. name: with its namespace, ``team/part``, where it has one."""

    name: str
    spec: bytes
    status: bytes


class _NodeStatus(Frozen):
    allocatable: Mapping[str, str | int] | None = None


class ScheduledNodeJson(Frozen):
    """A Node, as far as a scheduler counts."""

    metadata: Meta
    status: _NodeStatus | None = None

    def value(self) -> ScheduledNode:
        """As others know it."""
        amounts = _amounts((self.status or _NodeStatus()).allocatable)
        return ScheduledNode(
            cpu_milli=amounts.pop("cpu", 0),
            memory_mib=amounts.pop("memory", 0) // MIB,
            name=self.metadata.name,
            devices=amounts,
            product=(self.metadata.labels or {}).get(_PRODUCT, ""),
        )


class _NodeRows(Frozen):
    metadata: Page
    items: tuple[ScheduledNodeJson, ...] | None = None


class _PodClaim(Frozen):
    name: str = ""
    resource_claim_name: str | None = None


class _ScheduledSpec(PodSpec):
    resources: Amounts | None = None
    resource_claims: tuple[_PodClaim, ...] | None = None


class _PodStatus(Frozen):
    resource_claim_statuses: tuple[_PodClaim, ...] | None = None


class ScheduledPodJson(Frozen):
    """A pod, as the API server and kube-scheduler send it."""

    metadata: Meta
    spec: _ScheduledSpec | None = None
    status: _PodStatus | None = None

    def value(self) -> ScheduledPod:
        """As others know it."""
        meta, spec, status = self.metadata, self.spec or _ScheduledSpec(), self.status or _PodStatus()
        whole = _amounts((spec.resources or Amounts()).requests)
        containers = spec.values(lambda asked: _amounts({**(asked.limits or {}), **(asked.requests or {})}))
        totals = Pod(meta.namespace, meta.name, containers, _amounts(spec.overhead), whole).totals
        made = {named.name: named.resource_claim_name for named in status.resource_claim_statuses or ()}
        # A template that makes no claim for this pod has a status without a name.
        claims = tuple(
            claim.resource_claim_name or made.get(claim.name)
            for claim in spec.resource_claims or ()
            if claim.resource_claim_name or claim.name not in made or made[claim.name]
        )
        return ScheduledPod(
            cpu_milli=totals.pop("cpu", 0),
            memory_mib=ceil(totals.pop("memory", 0) / MIB),
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            node=spec.node_name,
            devices=tuple(sorted(totals.items())),
            claims=claims,
            owner=meta.controller.kind,
        )


class _PodRows(Frozen):
    metadata: Page
    items: tuple[ScheduledPodJson, ...] | None = None


class _RawRow(Frozen):
    metadata: Meta
    spec: Raw = Raw(b"{}")
    status: Raw = Raw(b"{}")

    def value(self) -> ApiObject:
        """As others know it."""
        meta = self.metadata
        name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        return ApiObject(name, bytes(self.spec), bytes(self.status))


class _RawRows(Frozen):
    metadata: Page = Page()
    items: tuple[_RawRow, ...] | None = None


@lru_cache(maxsize=4096)
def _amount(name: str, text: str) -> int:
    """CPUs in thousandths, others as they are. Raises ValueError."""
    amount = parse_quantity(text)
    return ceil(amount * 1000 if name == "cpu" else amount)


def _amounts(given: Mapping[str, str | int] | None) -> dict[str, int]:
    """CPUs, memory and extended resources; what is no amount is not there."""
    found = {}
    for name, text in (given or {}).items():
        if name in ("cpu", "memory") or "/" in name:
            try:
                found[name] = _amount(name, str(text))
            except ValueError:
                continue
    return found


class SchedulingSeen(Protocol):
    """Whom the watches tell. kind: of the objects, one of ``KINDS``; a value is of the kind."""

    def listed(self, kind: str, objects: Mapping[str, Any]) -> None:
        """These are all there are."""

    def changed(self, kind: str, name: str, value: Any) -> None:  # noqa: ANN401 - by kind
        """One is there, or is another; None: it is gone."""

    def answered(self, kind: str, trouble: str) -> None:
        """Whether the API server answers; trouble: why not."""


class Following:
    """How the watches of some kinds stand. Changes for the worse are logged. Any thread may ask."""

    def __init__(self, kinds: Sequence[str], log: logging.Logger) -> None:
        self._kinds, self._log = kinds, log
        self._troubles = dict.fromkeys(kinds, "the API server has not answered yet")
        self._complete: set[str] = set()

    def listed(self, kind: str) -> None:
        """All there are of it were told."""
        self._complete.add(kind)

    def answered(self, kind: str, trouble: str) -> None:
        """As ``SchedulingSeen``."""
        if trouble and trouble != self._troubles[kind]:
            self._log.warning("cluster cannot be followed", extra={"kind": kind, "reason": trouble})
        self._troubles[kind] = trouble

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Kinds of which not all were told yet, and why."""
        return tuple(f"{kind}: {self._troubles[kind]}" for kind in self._kinds if kind not in self._complete)

    @property
    def trouble(self) -> bool:
        """A watch is not answered now."""
        return any(self._troubles.values())


async def follow_scheduling(connection: Connection, driver: str, seen: SchedulingSeen) -> None:
    """Five watches, for ever. A server without ``resource.k8s.io/v1`` has no slices, claims and classes."""
    collections: dict[str, Collection[Any]] = {
        "nodes": Collection(NODES, _NodeRows, ScheduledNodeJson, page=PAGE),
        "pods": Collection(
            PODS, _PodRows, ScheduledPodJson, {"fieldSelector": _ENDED}, page=PAGE, in_namespaces=True
        ),
        "slices": slices_of_driver(driver),
        "claims": _raw("resourceclaims", in_namespaces=True),
        "classes": DEVICE_CLASSES,
    }
    await follow(connection, collections, seen)


async def follow(
    connection: Connection, collections: Mapping[str, Collection[Any]], seen: SchedulingSeen
) -> None:
    """A watch of each, for ever, told by its kind. Of what the server does not know, there is nothing."""
    async with asyncio.TaskGroup() as group:
        for kind, collection in collections.items():
            follower = _SchedulingListener(kind, seen)
            watch = CollectionWatch(connection, collection, follower.state, each=follower.one)
            group.create_task(unending(kind, watch.run()))


def _raw(
    path: str, selection: Mapping[str, str] | None = None, *, in_namespaces: bool = False
) -> Collection[ApiObject]:
    return Collection(
        f"{_RESOURCES}/{path}", _RawRows, _RawRow, selection or {}, page=PAGE, in_namespaces=in_namespaces
    )


def slices_of_driver(driver: str) -> Collection[ApiObject]:
    """The ResourceSlices of all nodes."""
    return _raw("resourceslices", {"fieldSelector": f"spec.driver={driver}"})


DEVICE_CLASSES = _raw("deviceclasses")
RESOURCE_QUOTAS = Collection("/api/v1/resourcequotas", _RawRows, _RawRow, page=PAGE, in_namespaces=True)


class _SchedulingListener:
    def __init__(self, kind: str, seen: SchedulingSeen) -> None:
        self._kind, self._seen, self._lists = kind, seen, 0

    def state(self, state: CollectionState[Any]) -> None:
        if state.lists != self._lists:
            self._lists = state.lists
            self._seen.listed(self._kind, state.objects)
        elif state.absent and not self._lists:
            self._seen.listed(self._kind, {})
        self._seen.answered(self._kind, "" if state.absent else state.trouble)

    def one(self, name: str, value: Any) -> None:  # noqa: ANN401 - by kind
        self._seen.changed(self._kind, name, value)

"""What the API server sends and is sent, as far as it is read: JSON to values of the port, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from partage.edges.kube.port import (
    GPU_COUNT,
    ClusterNode,
    ClusterPod,
    Lease,
    ObjectReference,
    Taint,
)
from partage.model.node_labels import NodeCondition, Truth
from partage.model.pod import Container, ContainerKind, Pod
from partage.values import Frozen

Json = dict[str, object]


class OwnerReference(Frozen):
    """A row of ownerReferences."""

    kind: str = ""
    uid: str = ""
    controller: bool = False


_INTERNAL = "InternalIP"
_TRUTHS: Mapping[str, Truth] = {"true": "True", "false": "False"}


class Meta(Frozen):
    """metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    deletion_timestamp: str | None = None
    owner_references: tuple[OwnerReference, ...] | None = None

    @property
    def controller(self) -> OwnerReference:
        """The owner that made it; empty: none did."""
        owners = self.owner_references or ()
        return next((owner for owner in owners if owner.controller), OwnerReference())


class TaintJson(Frozen):
    """A row of spec.taints."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class ConditionJson(Frozen):
    """A row of status.conditions."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None

    def value(self) -> NodeCondition:
        """The API server takes any text as status: one by others that is no truth value says nothing."""
        truth = _TRUTHS.get(self.status.lower(), "Unknown")
        return NodeCondition(self.type, truth, self.reason, self.message, self.last_transition_time or "")


class NodeSpec(Frozen):
    """spec of a Node."""

    taints: tuple[TaintJson, ...] | None = None
    unschedulable: bool = False


class AddressJson(Frozen):
    """A row of status.addresses."""

    type: str
    address: str = ""


class NodeStatus(Frozen):
    """status of a Node."""

    conditions: tuple[ConditionJson, ...] | None = None
    addresses: tuple[AddressJson, ...] | None = None
    capacity: Mapping[str, str | int] | None = None
    allocatable: Mapping[str, str | int] | None = None


class NodeJson(Frozen):
    """A Node."""

    metadata: Meta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None

    def value(self) -> ClusterNode:
        meta, spec, status = self.metadata, self.spec or NodeSpec(), self.status or NodeStatus()
        return ClusterNode(
            name=meta.name,
            uid=meta.uid,
            version=meta.resource_version,
            labels=meta.labels or {},
            annotations=meta.annotations or {},
            taints=tuple(
                Taint(taint.key, taint.effect, taint.value, taint.time_added or "")
                for taint in spec.taints or ()
            ),
            conditions=tuple(condition.value() for condition in status.conditions or ()),
            unschedulable=spec.unschedulable,
            address=next(
                (address.address for address in status.addresses or () if address.type == _INTERNAL), ""
            ),
            gpu_count=str((status.capacity or {}).get(GPU_COUNT, "")),
            capacity=_extended(status.capacity),
            allocatable=_extended(status.allocatable),
        )


class Page(Frozen, rename={"continue_": "continue", "resource_version": "resourceVersion"}):
    """metadata of a list. continue_: where the next page begins; empty: this was the last."""

    resource_version: str = ""
    continue_: str = ""


class NodeList(Frozen):
    """A list of Nodes."""

    metadata: Page
    items: tuple[NodeJson, ...] | None = None


class Amounts(Frozen):
    """resources of a container."""

    requests: Mapping[str, str | int] | None = None
    limits: Mapping[str, str | int] | None = None


AskedOf = Callable[[Amounts], Mapping[str, int]]
"""What a container asks for, by its ``resources``."""


class ContainerJson(Frozen):
    """A container."""

    name: str | None = None
    resources: Amounts | None = None
    restart_policy: str | None = None

    def value(self, asked: AskedOf, *, init: bool) -> Container:
        """init: it is one of initContainers."""
        kind: ContainerKind = "main" if not init else "sidecar" if self.restart_policy == "Always" else "init"
        return Container(self.name or "", asked(self.resources or Amounts()), kind)


class PodSpec(Frozen):
    """spec of a pod."""

    containers: tuple[ContainerJson, ...] | None = None
    init_containers: tuple[ContainerJson, ...] | None = None
    overhead: Mapping[str, str | int] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    node_name: str = ""

    def values(self, asked: AskedOf) -> tuple[Container, ...]:
        """The containers, in the kubelet's order."""
        return (
            *(container.value(asked, init=True) for container in self.init_containers or ()),
            *(container.value(asked, init=False) for container in self.containers or ()),
        )


class PodStatusJson(Frozen):
    """status of a pod."""

    phase: str = ""
    start_time: str | None = None


class PodJson(Frozen):
    """A pod; a bookmark of a watch has the shape of one, too, with nothing in it."""

    metadata: Meta
    spec: PodSpec | None = None
    status: PodStatusJson | None = None

    def value(self) -> ClusterPod:
        meta, spec, status = self.metadata, self.spec or PodSpec(), self.status or PodStatusJson()
        containers = spec.values(lambda asked: _extended(asked.requests))
        return ClusterPod(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            phase=status.phase,
            owner=meta.controller.kind,
            controller=meta.controller.uid,
            ends=meta.deletion_timestamp is not None,
            priority=spec.priority or 0,
            priority_class=spec.priority_class_name or "",
            labels=meta.labels or {},
            annotations=meta.annotations or {},
            requests=Pod(meta.namespace, meta.name, containers, _extended(spec.overhead)).totals,
            node=spec.node_name,
            started_at=status.start_time or "",
        )


def _extended(amounts: Mapping[str, str | int] | None) -> dict[str, int]:
    """Extended resources only (``domain/name``): their amounts are whole numbers, ``3`` or ``2k``."""
    found: dict[str, int] = {}
    for name, text in (amounts or {}).items():
        number, thousands = str(text).removesuffix("k"), str(text).endswith("k")
        if "/" in name and number.isascii() and number.isdigit():
            found[name] = int(number) * (1000 if thousands else 1)
    return found


class PodList(Frozen):
    """A list of pods."""

    metadata: Page
    items: tuple[PodJson, ...] | None = None


class LeaseJson(Frozen):
    """A Lease."""

    metadata: Meta
    spec: Mapping[str, str | int | None] | None = None

    def value(self) -> Lease:
        meta, spec = self.metadata, self.spec or {}
        return Lease(
            namespace=meta.namespace,
            name=meta.name,
            holder=str(spec.get("holderIdentity") or ""),
            duration_seconds=int(spec.get("leaseDurationSeconds") or 0),
            renewed_at=str(spec.get("renewTime") or ""),
            transitions=int(spec.get("leaseTransitions") or 0),
            version=meta.resource_version,
            annotations=meta.annotations or {},
            labels=meta.labels or {},
        )


class LeaseList(Frozen):
    """A list of Leases."""

    metadata: Page
    items: tuple[LeaseJson, ...] | None = None


class ConfigMapJson(Frozen):
    """A ConfigMap."""

    metadata: Meta
    data: Mapping[str, str] | None = None

    def value(self) -> ConfigMapJson:
        return self


class ConfigMapList(Frozen):
    """A list of ConfigMaps."""

    metadata: Page
    items: tuple[ConfigMapJson, ...] | None = None


class StatusCause(Frozen):
    """A row of details.causes."""

    reason: str = ""
    message: str = ""


class Details(Frozen):
    """details of a Status."""

    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: int = 0


class Status(Frozen):
    """How the API server says that something failed."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


def timestamp(seconds: float) -> str:
    """RFC 3339 with microseconds, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def second(seconds: float) -> str:
    """RFC 3339 with whole seconds, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reference(about: ObjectReference) -> Json:
    """An object that an event is about, or that owns another."""
    found: Json = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name, "uid": about.uid}
    return {**found, "namespace": about.namespace} if about.namespace else found


def lease_json(lease: Lease) -> Json:
    """A Lease as it is written."""
    meta: Json = {"name": lease.name, "namespace": lease.namespace, "annotations": dict(lease.annotations)}
    if lease.labels:
        meta["labels"] = dict(lease.labels)
    if lease.version:
        meta["resourceVersion"] = lease.version
    spec: Json = {"leaseTransitions": lease.transitions}
    if lease.holder:
        spec |= {"holderIdentity": lease.holder, "leaseDurationSeconds": lease.duration_seconds}
    if lease.renewed_at:
        spec["renewTime"] = lease.renewed_at
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}

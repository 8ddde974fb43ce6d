"""The port on a real API server. An event that repeats is one Event with a count, written rarely."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from partage.edges.kube.config import ClusterConfig
from partage.edges.kube.connection import Backoff, Connection, ErrorResponse, all_rows
from partage.edges.kube.objects import (
    Json,
    LeaseJson,
    NodeJson,
    NodeList,
    PodJson,
    PodList,
    lease_json,
    reference,
    second,
    timestamp,
)
from partage.edges.kube.port import (
    GPU_COUNT,
    ClusterEvent,
    ClusterNode,
    ClusterPod,
    Eviction,
    Lease,
    Taint,
    WatchState,
)
from partage.edges.kube.watch import NodeWatch
from partage.errors import Absent, Conflict
from partage.model.node_labels import NodeCondition

REWRITE_S = 300.0
"""An Event that repeats is written again after so many seconds at the earliest."""

FORGET_S = 3000.0
"""After so many seconds without a repetition it is a new Event: the API server keeps Events for an hour."""

MOST_NOTES = 256
LONGEST_NOTE = 1024
COMPONENT = "partage.dev/agent"


class _Series(Struct):
    name: str
    count: int
    written_s: float
    last_s: float


class EventWriter:
    """Writes events. clock: monotonic, wall: since 1970; both in seconds. instance: the node of the agent."""

    def __init__(
        self,
        connection: Connection,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._connection, self._instance, self._clock, self._wall = connection, instance, clock, wall
        self._series: dict[ClusterEvent, _Series] = {}

    async def record(self, event: ClusterEvent) -> None:
        """Write a new event, or count one that was there before. Raises what ``Cluster`` says."""
        now_s = self._clock()
        self._forget(now_s)
        series = self._series.get(event)
        if series is None:
            await self._create(event, now_s)
            return
        series.count += 1
        series.last_s = now_s
        if series.count > 2 and now_s - series.written_s < REWRITE_S:
            return
        try:
            await self._count(event, series)
        except Absent:
            await self._create(event, now_s)
        else:
            series.written_s = now_s

    def _forget(self, now_s: float) -> None:
        self._series = {
            event: series for event, series in self._series.items() if now_s - series.last_s < FORGET_S
        }
        while len(self._series) > MOST_NOTES:
            del self._series[next(iter(self._series))]

    async def _create(self, event: ClusterEvent, now_s: float) -> None:
        seen_at = self._wall()
        seed = repr((event, self._instance, seen_at)).encode()
        name = f"{event.about.name[:200]}.{hashlib.sha256(seed).hexdigest()[:16]}"
        body: Json = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": _namespace(event)},
            "eventTime": timestamp(seen_at),
            "reportingController": COMPONENT,
            "reportingInstance": self._instance[:128],
            "action": event.action,
            "reason": event.reason,
            "regarding": reference(event.about),
            "note": event.note.encode()[:LONGEST_NOTE].decode("utf-8", "ignore"),
            "type": event.type,
        }
        with suppress(Conflict):  # sent twice: it is there
            await self._connection.call(type(None), "POST", _path(event), body=body)
        self._series[event] = _Series(name, 1, now_s, now_s)

    async def _count(self, event: ClusterEvent, series: _Series) -> None:
        body: Json = {"series": {"count": series.count, "lastObservedTime": timestamp(self._wall())}}
        await self._connection.call(
            type(None),
            "PATCH",
            f"{_path(event)}/{series.name}",
            body=body,
            media_type="application/merge-patch+json",
        )


def _namespace(event: ClusterEvent) -> str:
    """Events about Nodes, which are in no namespace, are in ``default``."""
    return event.about.namespace or "default"


def _path(event: ClusterEvent) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{_namespace(event)}/events"


MANAGER = "partage"
"""The field manager: what it owns of a Node can be seen in metadata.managedFields."""

_BY_HAND = "partage-cli"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"


class ApiCluster:
    """Speaks to one API server.

    instance: the node or user whose events these are. wall: seconds since 1970, clock: monotonic.
    """

    def __init__(
        self,
        config: ClusterConfig,
        instance: str = MANAGER,
        *,
        wall: Callable[[], float] = time.time,
        backoff: Callable[[], Backoff] = Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = Connection(config, backoff)
        self._events = EventWriter(self._connection, instance, wall=wall, clock=clock)
        self._wall, self._clock = wall, clock

    @property
    def connection(self) -> Connection:
        """The way to the API server, for what only some agents and verbs ask of it."""
        return self._connection

    async def node(self, name: str) -> ClusterNode:
        return (await self._connection.call(NodeJson, "GET", _node(name))).value()

    async def nodes(self) -> tuple[ClusterNode, ...]:
        found = await all_rows(self._connection, NodeList, "/api/v1/nodes", {})
        return tuple(node_json.value() for node_json in found)

    async def set_gpu_count(self, name: str, count: int | None) -> None:
        amount = {GPU_COUNT: None if count is None else str(count)}
        body: Json = {"status": {"capacity": amount, "allocatable": amount}}
        await self._patch(f"{_node(name)}/status", body, _MERGE, {"fieldManager": MANAGER})

    async def apply_node(
        self, node: ClusterNode, labels: Mapping[str, str], annotations: Mapping[str, str]
    ) -> ClusterNode:
        # With its uid, the request cannot create a Node that has just been deleted.
        meta: Json = {
            "name": node.name,
            "uid": node.uid,
            "labels": dict(labels),
            "annotations": dict(annotations),
        }
        return await self._patch(
            _node(node.name),
            {"apiVersion": "v1", "kind": "Node", "metadata": meta},
            _APPLY,
            {"fieldManager": MANAGER, "force": "true"},
        )

    async def annotate_node(self, node: ClusterNode, annotations: Mapping[str, str | None]) -> ClusterNode:
        # Another manager: what the agent applies next must not remove it.
        meta: Json = {"resourceVersion": node.version, "uid": node.uid, "annotations": dict(annotations)}
        return await self._patch(_node(node.name), {"metadata": meta}, _MERGE, {"fieldManager": _BY_HAND})

    async def set_taints(self, node: ClusterNode, taints: Sequence[Taint]) -> ClusterNode:
        # The list is atomic: applied, it would take away the taints of others.
        rows = [_taint(taint) for taint in taints]
        meta: Json = {"resourceVersion": node.version, "uid": node.uid}
        body: Json = {"metadata": meta, "spec": {"taints": rows}}
        return await self._patch(_node(node.name), body, _MERGE, {"fieldManager": MANAGER})

    async def set_condition(self, name: str, condition: NodeCondition) -> None:
        now = second(self._wall())
        row: Json = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": condition.changed_at or now,
            "lastHeartbeatTime": now,
        }
        body: Json = {"status": {"conditions": [row]}}
        await self._patch(f"{_node(name)}/status", body, _STRATEGIC, {"fieldManager": MANAGER})

    async def _patch(
        self, path: str, body: Json, media_type: str, parameters: Mapping[str, str]
    ) -> ClusterNode:
        node_json = await self._connection.call(
            NodeJson, "PATCH", path, parameters=parameters, body=body, media_type=media_type
        )
        return node_json.value()

    async def pods(self, node: str) -> tuple[ClusterPod, ...]:
        selection = {"fieldSelector": f"spec.nodeName={node}"}
        found = await all_rows(self._connection, PodList, "/api/v1/pods", selection)
        return tuple(pod_json.value() for pod_json in found)

    async def annotate_pod(self, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await self._connection.call(
            PodJson,
            "PATCH",
            path,
            parameters={"fieldManager": MANAGER},
            body={"metadata": {"annotations": dict(annotations)}},
            media_type=_MERGE,
        )

    async def evict(
        self, namespace: str, name: str, grace_seconds: int | None = None, *, uid: str = ""
    ) -> Eviction:
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        options: Json = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        if uid:
            options["preconditions"] = {"uid": uid}
        if options:
            body["deleteOptions"] = options
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        try:
            # Once: whether it may be sent again is decided anew, by who has asked for it.
            await self._connection.call(type(None), "POST", path, body=body, tries=1)
        except (Absent, Conflict):  # a conflict: that uid has gone
            return Eviction.GONE
        except ErrorResponse:  # the only one that the connection lets through
            return Eviction.PROTECTED
        return Eviction.ACCEPTED

    async def record(self, event: ClusterEvent) -> None:
        await self._events.record(event)

    async def lease(self, namespace: str, name: str) -> Lease:
        try:
            return (await self._connection.call(LeaseJson, "GET", _lease(namespace, name))).value()
        except Absent:
            return Lease(name, namespace=namespace)

    async def write_lease(self, lease: Lease) -> Lease:
        place = _lease(lease.namespace, lease.name)
        method, path = ("PUT", place) if lease.version else ("POST", place.rpartition("/")[0])
        return (await self._connection.call(LeaseJson, method, path, body=lease_json(lease))).value()

    async def watch_node(self, name: str, seen: Callable[[WatchState], None]) -> None:
        await NodeWatch(self._connection, name, seen, clock=self._clock).run()


def _node(name: str) -> str:
    return f"/api/v1/nodes/{name}"


def _taint(taint: Taint) -> Json:
    row: Json = {"key": taint.key, "effect": taint.effect, "value": taint.value}
    return {**row, "timeAdded": taint.added_at} if taint.added_at else row


def _lease(namespace: str, name: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"

"""Events of the cluster: a problem that repeats is one Event with a count, written rarely."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from partage.edges.kube.connection import Connection
from partage.edges.kube.objects import Json, reference, timestamp
from partage.edges.kube.port import ClusterEvent
from partage.errors import Absent, Conflict

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

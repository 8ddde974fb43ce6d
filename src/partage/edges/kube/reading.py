"""Nodes, pods and events as the API server has them, for verbs that only read: JSON, not yet interpreted.

The agent uses the port; what it reads is far less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partage.edges.kube.connection import Connection
from partage.edges.kube.objects import Page
from partage.edges.kube.paging import all_rows
from partage.values import Frozen

Object = Mapping[str, Any]

_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


class _Objects(Frozen):
    """A list of objects of any kind."""

    metadata: Page = Page()
    items: tuple[dict[str, Any], ...] | None = None


class ClusterReader:
    """Reads from one API server. All calls raise Unreachable, Absent or Rejected."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def namespace(self) -> str:
        """Of pods that are named without one."""
        return self._connection.config.namespace

    async def nodes(self) -> tuple[Object, ...]:
        """All Nodes."""
        return await self._list("/api/v1/nodes", {})

    async def pods(self) -> tuple[Object, ...]:
        """The pods of all namespaces that have not ended."""
        return await self._list("/api/v1/pods", {"fieldSelector": _ENDED})

    async def pod(self, namespace: str, name: str) -> Object:
        """One pod. Raises Absent where there is none."""
        return await self._connection.call(
            dict[str, Any], "GET", f"/api/v1/namespaces/{namespace}/pods/{name}"
        )

    async def events(self, namespace: str, pod: str) -> tuple[Object, ...]:
        """The events about a pod, in no order."""
        about = f"involvedObject.kind=Pod,involvedObject.name={pod}"
        return await self._list(f"/api/v1/namespaces/{namespace}/events", {"fieldSelector": about})

    async def _list(self, path: str, parameters: Mapping[str, str]) -> tuple[Object, ...]:
        return await all_rows(self._connection, _Objects, path, parameters)

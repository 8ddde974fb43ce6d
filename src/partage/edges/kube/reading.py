"""Nodes, pods and events as the API server has them, for verbs that only read: JSON, not yet interpreted.

The agent uses the port; what it reads is far less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partage.edges.kube.connection import Connection

Object = Mapping[str, Any]

_PAGE = "500"
_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


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
        found: list[Object] = []
        asked = {**parameters, "limit": _PAGE}
        while True:
            page = await self._connection.call(dict[str, Any], "GET", path, parameters=asked)
            items, meta = page.get("items"), page.get("metadata")
            found += [one for one in items or () if isinstance(one, dict)]
            goes_on = meta.get("continue") if isinstance(meta, dict) else None
            if not isinstance(goes_on, str) or not goes_on:
                return tuple(found)
            asked = {**asked, "continue": goes_on}

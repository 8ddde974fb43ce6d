"""Nodes, pods and events for verbs that only read: as the API server has them, JSON that is not yet
interpreted, and, for ``partage web``, all Nodes and all pods that ask for extended resources, by one watch
of each.

The agent uses the port; what it reads is far less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from partage.edges.kube.connection import PAGE, Connection, all_rows
from partage.edges.kube.objects import NodeJson, NodeList, Page, PodJson, PodList
from partage.edges.kube.port import ClusterNode, ClusterPod
from partage.edges.kube.watch import Collection, CollectionState, CollectionWatch
from partage.values import Frozen

Object = Mapping[str, Any]

_RESOURCES = "/apis/resource.k8s.io/v1"
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

    async def pods(self, *, ended: bool = False) -> tuple[Object, ...]:
        """The pods of all namespaces. ended: also those that have ended and are still there."""
        return await self._list("/api/v1/pods", {} if ended else {"fieldSelector": _ENDED})

    async def pod(self, namespace: str, name: str) -> Object:
        """One pod. Raises Absent where there is none."""
        return await self._connection.call(
            dict[str, Any], "GET", f"/api/v1/namespaces/{namespace}/pods/{name}"
        )

    async def events(self, namespace: str, pod: str) -> tuple[Object, ...]:
        """The events about a pod, in no order."""
        about = f"involvedObject.kind=Pod,involvedObject.name={pod}"
        return await self._list(f"/api/v1/namespaces/{namespace}/events", {"fieldSelector": about})

    async def server_version(self) -> str:
        """``v1.37.2``."""
        found = await self._connection.call(dict[str, Any], "GET", "/version")
        return str(found.get("gitVersion", ""))

    async def slices(self) -> tuple[Object, ...]:
        """All ResourceSlices. Absent: the server does not serve ``resource.k8s.io/v1``."""
        return await self._list(f"{_RESOURCES}/resourceslices", {})

    async def claims(self) -> tuple[Object, ...]:
        """The ResourceClaims of all namespaces."""
        return await self._list(f"{_RESOURCES}/resourceclaims", {})

    async def claim_templates(self, namespace: str) -> tuple[Object, ...]:
        """The ResourceClaimTemplates of a namespace."""
        return await self._list(f"{_RESOURCES}/namespaces/{namespace}/resourceclaimtemplates", {})

    async def device_classes(self) -> tuple[Object, ...]:
        """All DeviceClasses."""
        return await self._list(f"{_RESOURCES}/deviceclasses", {})

    async def _list(self, path: str, parameters: Mapping[str, str]) -> tuple[Object, ...]:
        return await all_rows(self._connection, _Objects, path, parameters)


NODES, PODS = "/api/v1/nodes", "/api/v1/pods"

_ON_NODES = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Pods that have a node and have not ended. The API server has no selector for what pods ask for."""


async def watch_nodes(
    connection: Connection,
    seen: Callable[[CollectionState[ClusterNode]], None],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Follow all Nodes for ever. seen: told at every change, of a Node or of the trouble."""
    nodes = Collection[ClusterNode](NODES, NodeList, NodeJson, page=PAGE)
    await CollectionWatch(connection, nodes, seen, clock=clock).run()


async def watch_pods(
    connection: Connection,
    seen: Callable[[CollectionState[ClusterPod]], None],
    keeps: Callable[[ClusterPod], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Follow the pods of all namespaces that are on nodes, for ever. keeps: which of them are of interest;
    the others are forgotten at once. seen: told at every change of those, by ``namespace/name``.
    """
    pods = Collection[ClusterPod](
        PODS, PodList, PodJson, {"fieldSelector": _ON_NODES}, page=PAGE, in_namespaces=True, keeps=keeps
    )
    await CollectionWatch(connection, pods, seen, clock=clock).run()

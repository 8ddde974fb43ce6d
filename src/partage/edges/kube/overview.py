"""All Nodes, and all pods that ask for extended resources: one watch of each, for ``partage web``."""

from __future__ import annotations

import time
from collections.abc import Callable

from partage.edges.kube.connection import Connection
from partage.edges.kube.objects import NodeJson, NodeList, PodJson, PodList
from partage.edges.kube.paging import PAGE
from partage.edges.kube.port import ClusterNode, ClusterPod
from partage.edges.kube.watch import Collection, CollectionState, CollectionWatch

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

"""NVIDIA's device plugin as a DaemonSet, and whether it runs on a node.

The GPU Operator's DaemonSet has the label ``nvidia.com/gpu.deploy.device-plugin: "true"`` as node selector,
and the Operator leaves a ``false`` of an admin alone. The chart's DaemonSet knows no such label: it gets an
affinity that keeps off nodes with ``false``.
"""

from __future__ import annotations

from typing import Any

from partage.edges.kube.config import ClusterConfig
from partage.edges.kube.connection import Backoff, Connection
from partage.edges.kube.objects import ContainerJson, Json, Meta, NodeJson
from partage.values import Frozen

DEPLOY_LABEL = "nvidia.com/gpu.deploy.device-plugin"
MANAGER = "partage-takeover"

_CONTAINERS = ("nvidia-device-plugin", "nvidia-device-plugin-ctr", "mps-control-daemon-ctr")
"""In the GPU Operator's DaemonSet; in the chart's and in the static manifests; that of the MPS daemons."""

_MERGE = "application/merge-patch+json"
_SETS = "/apis/apps/v1/daemonsets"
_KEPT_OFF: Json = {"key": DEPLOY_LABEL, "operator": "NotIn", "values": ["false"]}


class _PodSpec(Frozen):
    containers: tuple[ContainerJson, ...] = ()
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None


class _Template(Frozen):
    spec: _PodSpec


class _Spec(Frozen):
    template: _Template


class _Set(Frozen):
    metadata: Meta
    spec: _Spec


class _Sets(Frozen):
    items: tuple[_Set, ...] | None = None


class PluginDaemonSet(Frozen):
    """A DaemonSet of NVIDIA's device plugin. by_label: a node with the label ``false`` is left out already.
    terms: its required node affinity.
    """

    namespace: str
    name: str
    version: str
    by_label: bool
    terms: tuple[dict[str, Any], ...] = ()

    @property
    def kept_off(self) -> tuple[dict[str, Any], ...]:
        """Its affinity, with nodes left out that have the label ``false``."""
        terms = self.terms or ({},)
        return tuple(
            {**term, "matchExpressions": [*(term.get("matchExpressions") or []), _KEPT_OFF]} for term in terms
        )


class DevicePlugins:
    """Finds NVIDIA's plugin in a cluster, and takes it from a node."""

    def __init__(self, config: ClusterConfig) -> None:
        self._connection = Connection(config, Backoff)

    async def sets(self) -> tuple[PluginDaemonSet, ...]:
        """All DaemonSets of the plugin. Raises ClusterError."""
        found = await self._connection.call(_Sets, "GET", _SETS)
        return tuple(
            _plugin_set(daemon_set)
            for daemon_set in found.items or ()
            if _is_plugin(daemon_set.spec.template.spec)
        )

    async def label(self, node: str) -> str | None:
        """The value of the label on a node; None: it has none. Raises ClusterError."""
        node_json = await self._connection.call(NodeJson, "GET", f"/api/v1/nodes/{node}")
        return (node_json.metadata.labels or {}).get(DEPLOY_LABEL)

    async def set_label(self, node: str, value: str | None) -> None:
        """Set the label on a node, or remove it. Raises ClusterError."""
        body: Json = {"metadata": {"labels": {DEPLOY_LABEL: value}}}
        await self._patch(NodeJson, f"/api/v1/nodes/{node}", body)

    async def keep_off(self, daemon_set: PluginDaemonSet) -> None:
        """Keep its pods off nodes with the label ``false``. Conflict if it has changed since it was read."""
        affinity: Json = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": list(daemon_set.kept_off)
                }
            }
        }
        body: Json = {
            "metadata": {"resourceVersion": daemon_set.version},
            "spec": {"template": {"spec": {"affinity": affinity}}},
        }
        await self._patch(
            _Set, f"/apis/apps/v1/namespaces/{daemon_set.namespace}/daemonsets/{daemon_set.name}", body
        )

    async def _patch(self, kind: type[Any], path: str, body: Json) -> None:
        await self._connection.call(
            kind, "PATCH", path, parameters={"fieldManager": MANAGER}, body=body, media_type=_MERGE
        )


def _is_plugin(spec: _PodSpec) -> bool:
    return any(container.name in _CONTAINERS for container in spec.containers)


def _plugin_set(found: _Set) -> PluginDaemonSet:
    spec, meta = found.spec.template.spec, found.metadata
    affinity = (spec.affinity or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = tuple(required.get("nodeSelectorTerms") or ())
    kept_off = bool(terms) and all(_KEPT_OFF in (term.get("matchExpressions") or []) for term in terms)
    by_label = (spec.node_selector or {}).get(DEPLOY_LABEL) == "true" or kept_off
    return PluginDaemonSet(meta.namespace, meta.name, meta.resource_version, by_label, terms)

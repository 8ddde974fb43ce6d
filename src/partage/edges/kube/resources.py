"""ResourceSlices, ResourceClaims and their templates of ``resource.k8s.io/v1``, and the pods that name
templates.

Slices are JSON objects here: what the API server returns is compared with what was sent, so nothing of it may
be dropped on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from msgspec import Raw, field

from partage.edges.kube.connection import Connection, all_rows
from partage.edges.kube.objects import Json, Meta, Page, reference
from partage.edges.kube.port import ClusterObject, ObjectReference
from partage.edges.kube.watch import Collection, CollectionState, CollectionWatch
from partage.errors import Absent
from partage.values import Frozen

_API = "/apis/resource.k8s.io/v1"
_SLICES = f"{_API}/resourceslices"
_APPLY = "application/apply-patch+yaml"


class SliceObject(ClusterObject, kw_only=True):
    """A ResourceSlice as the API server has it."""

    spec: Mapping[str, Any]


class _SliceJson(Frozen):
    metadata: Meta
    spec: Mapping[str, Any]

    def value(self) -> SliceObject:
        """As others know it."""
        meta = self.metadata
        return SliceObject(meta.name, meta.uid, meta.resource_version, spec=self.spec)


class _SliceList(Frozen):
    metadata: Page = Page()
    items: tuple[_SliceJson, ...] | None = None


class _NodeJson(Frozen):
    metadata: Meta


class _Version(Frozen):
    git_version: str


class NodeOwner(Frozen):
    """The Node that owns slices: they are deleted with it."""

    name: str
    uid: str


class ResourceApi:
    """Speaks to one API server. All calls raise Unreachable, Conflict, Absent or Rejected."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def server_version(self) -> str:
        """``v1.37.2``. Every account may ask it."""
        return (await self._connection.call(_Version, "GET", "/version")).git_version

    async def node(self, name: str) -> NodeOwner:
        """A Node, as an owner."""
        path = f"/api/v1/nodes/{path_part(name)}"
        return NodeOwner(name, (await self._connection.call(_NodeJson, "GET", path)).metadata.uid)

    async def slices(self, node: str, driver: str) -> tuple[SliceObject, ...]:
        """The slices of a driver on a node, as they are now."""
        found = await all_rows(self._connection, _SliceList, _SLICES, _of(node, driver))
        return tuple(row.value() for row in found)

    async def watch_slices(
        self, node: str, driver: str, seen: Callable[[CollectionState[SliceObject]], None]
    ) -> None:
        """Follow the slices of a driver on a node for ever."""
        slices = Collection[SliceObject](_SLICES, _SliceList, _SliceJson, _of(node, driver))
        await CollectionWatch(self._connection, slices, seen).run()

    async def create_slice(self, prefix: str, owner: NodeOwner, spec: Mapping[str, Any]) -> SliceObject:
        """A new slice. prefix: of its name. owner: its Node."""
        node = {"apiVersion": "v1", "kind": "Node", **_named(owner), "controller": True}
        metadata = {"generateName": prefix, "ownerReferences": [node]}
        body = _object("ResourceSlice", metadata, spec=spec)
        return (await self._connection.call(_SliceJson, "POST", _SLICES, body=body)).value()

    async def replace_slice(
        self, slice_: SliceObject, owner: NodeOwner, spec: Mapping[str, Any]
    ) -> SliceObject:
        """Another content. slice_: as it was read; Conflict if it has changed since."""
        node = {"apiVersion": "v1", "kind": "Node", **_named(owner), "controller": True}
        metadata = {
            "name": slice_.name,
            "uid": slice_.uid,
            "resourceVersion": slice_.version,
            "ownerReferences": [node],
        }
        path = f"{_SLICES}/{path_part(slice_.name)}"
        body = _object("ResourceSlice", metadata, spec=spec)
        return (await self._connection.call(_SliceJson, "PUT", path, body=body)).value()

    async def delete_slice(self, slice_: SliceObject) -> None:
        """Conflict if it has changed since it was read."""
        body: Json = {"preconditions": {"uid": slice_.uid, "resourceVersion": slice_.version}}
        path = f"{_SLICES}/{path_part(slice_.name)}"
        await self._connection.call(dict[str, Any], "DELETE", path, body=body)

    async def claim(self, namespace: str, name: str) -> bytes:
        """A ResourceClaim, as JSON, as it is now."""
        return bytes(await self._connection.call(Raw, "GET", _claim(namespace, name)))

    async def say_devices(
        self,
        namespace: str,
        name: str,
        uid: str,
        devices: Sequence[Mapping[str, Any]],
        manager: str,
    ) -> None:
        """Own exactly these entries of ``status.devices`` of a claim; those of other drivers stay."""
        metadata = {"name": name, "namespace": namespace, "uid": uid}
        body = _object("ResourceClaim", metadata, status={"devices": list(devices)})
        await self._connection.call(
            dict[str, Any],
            "PATCH",
            f"{_claim(namespace, name)}/status",
            parameters={"fieldManager": manager, "force": "true"},
            body=body,
            media_type=_APPLY,
        )


def _of(node: str, driver: str) -> dict[str, str]:
    return {"fieldSelector": f"spec.nodeName={node},spec.driver={driver}"}


def _claim(namespace: str, name: str) -> str:
    """Names come from the kubelet: quoted, they are one part of the path, whatever they are."""
    return f"{_API}/namespaces/{path_part(namespace)}/resourceclaims/{path_part(name)}"


def path_part(name: str) -> str:
    """Of a path. Raises Absent for a name that would be no part: no object has it."""
    if name in ("", ".", ".."):
        raise Absent(f"no object has the name {name!r}")
    return quote(name, safe="")


def _named(owner: NodeOwner) -> dict[str, str]:
    return {"name": owner.name, "uid": owner.uid}


def _object(kind: str, metadata: Mapping[str, object], **parts: object) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, **parts}


_TEMPLATES = "resourceclaimtemplates"
_MERGE = "application/merge-patch+json"
_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


class _TemplateSpec(Frozen):
    spec: Mapping[str, Any] = field(default_factory=dict)


class TemplateJson(Frozen):
    """A template."""

    metadata: Meta = Meta()
    spec: _TemplateSpec = field(default_factory=_TemplateSpec)


class _TemplateList(Frozen):
    metadata: Page = Page()
    items: tuple[TemplateJson, ...] | None = None


class _NamedTemplate(Frozen):
    resource_claim_template_name: str | None = None


class _NamingSpec(Frozen):
    resource_claims: tuple[_NamedTemplate, ...] | None = None


class _NamingPod(Frozen):
    spec: _NamingSpec = field(default_factory=_NamingSpec)


class _NamingPods(Frozen):
    metadata: Page = Page()
    items: tuple[_NamingPod, ...] | None = None


class ClaimTemplates:
    """Speaks to one API server. All calls raise Unreachable, Conflict, Absent or Rejected."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, namespace: str, name: str) -> TemplateJson:
        """One."""
        return await self._connection.call(TemplateJson, "GET", _path(namespace, name))

    async def create(self, namespace: str, manifest: Json) -> None:
        """A new one. Conflict: there is one of that name."""
        await self._connection.call(dict[str, Any], "POST", _path(namespace), body=manifest)

    async def mark(
        self, namespace: str, name: str, annotations: Mapping[str, str], owner: ObjectReference | None
    ) -> None:
        """Set annotations, and this owner alone."""
        meta: Json = {"annotations": dict(annotations)}
        if owner is not None:
            meta["ownerReferences"] = [reference(owner)]
        await self._connection.call(
            dict[str, Any],
            "PATCH",
            _path(namespace, name),
            body={"metadata": meta},
            media_type=_MERGE,
        )

    async def labelled(self, selector: str) -> tuple[TemplateJson, ...]:
        """Those of all namespaces with a label."""
        asked = {"labelSelector": selector}
        return await all_rows(self._connection, _TemplateList, f"{_API}/{_TEMPLATES}", asked)

    async def delete(self, namespace: str, name: str, uid: str, version: str) -> None:
        """Conflict if it has changed since it was read."""
        body: Json = {"preconditions": {"uid": uid, "resourceVersion": version}}
        await self._connection.call(dict[str, Any], "DELETE", _path(namespace, name), body=body)

    async def named_by_pods(self, namespace: str) -> frozenset[str]:
        """The templates that pods of a namespace name which have not ended."""
        path = f"/api/v1/namespaces/{path_part(namespace)}/pods"
        pods = await all_rows(self._connection, _NamingPods, path, {"fieldSelector": _ENDED})
        names = (
            claim.resource_claim_template_name for pod in pods for claim in pod.spec.resource_claims or ()
        )
        return frozenset(name for name in names if name)


def _path(namespace: str, name: str = "") -> str:
    """A namespace comes from a review: quoted, it is one part of the path, whatever it is."""
    place = f"{_API}/namespaces/{path_part(namespace)}/{_TEMPLATES}"
    return f"{place}/{path_part(name)}" if name else place

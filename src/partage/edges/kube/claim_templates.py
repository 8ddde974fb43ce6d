"""ResourceClaimTemplates, and the pods that name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import field

from partage.edges.kube.connection import Connection
from partage.edges.kube.objects import Json, Meta, Page
from partage.edges.kube.paging import all_rows
from partage.edges.kube.resources import path_part
from partage.values import Frozen

_API = "/apis/resource.k8s.io/v1"
_TEMPLATES = "resourceclaimtemplates"
_MERGE = "application/merge-patch+json"
_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


class OwnerJson(Frozen):
    """A row of ownerReferences, as it is written."""

    api_version: str
    kind: str
    name: str
    uid: str


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
        self, namespace: str, name: str, annotations: Mapping[str, str], owner: OwnerJson | None
    ) -> None:
        """Set annotations, and this owner alone."""
        meta: Json = {"annotations": dict(annotations)}
        if owner is not None:
            meta["ownerReferences"] = [owner]
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

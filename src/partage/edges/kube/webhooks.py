"""The objects of a webhook: its configuration, with the authorities that the API server trusts; the Secret of
its certificate; and other systems' schedulers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import field

from partage.edges.kube.connection import Connection, all_rows
from partage.edges.kube.objects import Json, Meta, Page
from partage.edges.kube.watch import Collection, CollectionState, CollectionWatch
from partage.errors import Absent
from partage.values import Frozen

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_TLS = "kubernetes.io/tls"


class SecretObject(Frozen):
    """A Secret. version: its resourceVersion; empty: there is none yet. meta: as it was read."""

    data: Mapping[str, bytes] = field(default_factory=dict)
    version: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    type: str = ""


class _SecretJson(Frozen):
    metadata: Meta
    data: Mapping[str, str] | None = None
    type: str = ""

    def value(self) -> SecretObject:
        """As others know it. A value that is not base64 is empty."""
        meta = self.metadata
        plain = {"labels": meta.labels or {}, "annotations": meta.annotations or {}, "uid": meta.uid}
        data = {name: _decoded(text) for name, text in (self.data or {}).items()}
        return SecretObject(data, meta.resource_version, plain, self.type)


class _SecretList(Frozen):
    metadata: Page = Page()
    items: tuple[_SecretJson, ...] | None = None


class WebhookState(Frozen):
    """The configuration as the API server has it. bundles: of each webhook."""

    uid: str
    bundles: tuple[bytes, ...]
    document: Mapping[str, Any]


class _NamedObject(Frozen):
    metadata: Meta


class _NamedList(Frozen):
    metadata: Page = Page()
    items: tuple[_NamedObject, ...] | None = None


class _ServerVersionJson(Frozen):
    git_version: str = ""


class WebhookObjects:
    """Speaks to one API server about one webhook. All calls raise Unreachable, Conflict, Absent or Rejected.
    namespace: of the Secret. name: of the configuration.
    """

    def __init__(self, connection: Connection, namespace: str, name: str) -> None:
        self._connection, self._name, self._namespace = connection, name, namespace
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"

    @property
    def service(self) -> tuple[str, str]:
        """Name and namespace of the webhook's Service."""
        return self._name, self._namespace

    @property
    def secret_name(self) -> str:
        """Of the Secret."""
        return f"{self._name}-tls"

    async def server_version(self) -> str:
        """``v1.37.2``. Every account may ask it."""
        return (await self._connection.call(_ServerVersionJson, "GET", "/version")).git_version

    async def watch_secret(self, seen: Callable[[CollectionState[SecretObject]], None]) -> None:
        """Follow the Secret for ever."""
        secrets = Collection[SecretObject](
            self._secrets, _SecretList, _SecretJson, {"fieldSelector": f"metadata.name={self.secret_name}"}
        )
        await CollectionWatch(self._connection, secrets, seen).run()

    async def write_secret(self, secret: SecretObject, data: Mapping[str, bytes]) -> SecretObject:
        """Replace what it holds, or make it. secret: as it was read; Conflict if it has changed since."""
        meta: Json = {"name": self.secret_name, **secret.meta}
        method, path = "POST", self._secrets
        if secret.version:
            meta["resourceVersion"] = secret.version
            method, path = "PUT", f"{self._secrets}/{self.secret_name}"
        texts = {name: base64.b64encode(content).decode() for name, content in data.items()}
        body: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": meta,
            "type": secret.type or _TLS,
            "data": texts,
        }
        return (await self._connection.call(_SecretJson, method, path, body=body)).value()

    async def configuration(self) -> WebhookState:
        """As it is now."""
        found = await self._connection.call(dict[str, Any], "GET", f"{_CONFIGURATIONS}/{self._name}")
        bundles = tuple(
            _decoded(_client(webhook).get("caBundle") or "") for webhook in found.get("webhooks") or ()
        )
        return WebhookState(found["metadata"]["uid"], bundles, found)

    async def trust(self, state: WebhookState, bundle: bytes) -> None:
        """Write the authorities into each webhook. state: as it was read; Conflict if it has changed."""
        text = base64.b64encode(bundle).decode()
        webhooks = [
            {**webhook, "clientConfig": {**_client(webhook), "caBundle": text}}
            for webhook in state.document.get("webhooks") or ()
        ]
        body: Json = {**state.document, "webhooks": webhooks}
        path = f"{_CONFIGURATIONS}/{self._name}"
        await self._connection.call(dict[str, Any], "PUT", path, body=body)

    async def any_deployment_or_lease(self, names: Iterable[str]) -> bool:
        """Whether one of these names is that of a Deployment or of a Lease, in any namespace."""
        for name in names:
            for path in ("/apis/apps/v1/deployments", "/apis/coordination.k8s.io/v1/leases"):
                asked = {"fieldSelector": f"metadata.name={name}"}
                try:
                    if await all_rows(self._connection, _NamedList, path, asked):
                        return True
                except Absent:
                    continue
        return False


def _client(webhook: Mapping[str, Any]) -> Mapping[str, Any]:
    found = webhook.get("clientConfig")
    return found if isinstance(found, Mapping) else {}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""

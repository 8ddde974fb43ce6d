"""A webhook that is served with TLS, against an API server that keeps objects."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from partage.admission.certificates import CertificateKeeper
from partage.admission.decide.settings import DialectSettings
from partage.admission.service import AdmissionParts, AdmissionService
from partage.admission.state import AdmissionState
from partage.admission.templates import PodTemplates
from partage.admission.verb import server_names
from partage.admission.webhook import MUTATE
from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.connection import Backoff
from partage.edges.kube.election import Election
from partage.edges.kube.webhooks import WebhookObjects
from partage.serve_http.http import HttpServer
from partage.serve_http.http_access import HttpAccess, HttpOptions, listen
from tests.edges.kube.scripted import PKI
from tests.edges.kube.store import NODES, SLICES, WEBHOOKS, ObjectStore
from tests.scheduler.objects import classes, device, node, slices

Json = dict[str, Any]
NAME, NAMESPACE = "hook", "gpus"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
NAMES = server_names(NAME, NAMESPACE)


def gpu(number: int, **more: Any) -> Json:
    """A GPU that is shared by amounts, with cores, as the agent publishes it."""
    made = device(number, **more)
    policy = {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}
    made["capacity"]["cores"] = {"value": "100", "requestPolicy": policy}
    return made


def filled(store: ObjectStore, *nodes: str) -> None:
    """Nodes with two GPUs each that are shared by amounts, and the configuration as the chart makes it."""
    for one in classes():
        store.put(CLASSES, one)
    for name in nodes or ("n0",):
        store.put(NODES, node(name))
        store.put(SLICES, slices(name, [gpu(0), gpu(1)]))
    client: Json = {"service": {"name": NAME, "namespace": NAMESPACE, "path": MUTATE}}
    store.put(WEBHOOKS, {"metadata": {"name": NAME}, "webhooks": [{"name": "a.b.c", "clientConfig": client}]})


def ca_bundle(store: ObjectStore) -> str:
    """Whom the API server is told to trust."""
    found = store.objects[WEBHOOKS][NAME]["webhooks"][0]["clientConfig"].get("caBundle", "")
    return base64.b64decode(found).decode()


def review(
    pod: Json, namespace: str = "team", *, dry_run: bool = False, uid: str = "u1", **more: Any
) -> Json:
    """As the API server sends it."""
    asked = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": namespace,
        "dryRun": dry_run,
        "userInfo": {"username": "somebody"},
        "object": pod,
        "options": {"kind": "CreateOptions"},
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


class Served:
    """Asked as the API server asks: with TLS, whose certificate is checked."""

    def __init__(self, port: int, service: AdmissionService, server_name: str) -> None:
        self.port, self.service, self._server_name = port, service, server_name
        self.trusted = (PKI / "ca.crt").read_text()

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, method, path, body, headers)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        tls = ssl.create_default_context(cadata=self.trusted)
        connection = _Named("127.0.0.1", self.port, self._server_name, tls)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()
        finally:
            connection.close()

    async def mutate(self, pod: Json, **more: Any) -> Json:
        status, answer = await self.ask("POST", MUTATE, review(pod, **more))
        assert status == 200, answer
        response: Json = answer["response"]
        return response

    async def refusal(self, pod: Json, **more: Any) -> str:
        response = await self.mutate(pod, **more)
        assert not response["allowed"], response
        return str(response["status"]["message"])

    async def ready(self) -> int:
        """The status; 0: its certificate is not the one that is trusted."""
        try:
            return (await self.ask("GET", "/readyz"))[0]
        except ssl.SSLError:
            return 0

    async def until_ready(self) -> None:
        await until(self.ready, 200)

    async def metric(self, line: str) -> float:
        text = (await self.ask("GET", "/metrics"))[1]
        found = [row for row in text.splitlines() if row.startswith(f"{line} ")]
        return float(found[0].split()[-1]) if found else 0.0


class _Named(http.client.HTTPSConnection):
    """Connects to an address, and checks another name, as for a Service."""

    def __init__(self, host: str, port: int, name: str, tls: ssl.SSLContext) -> None:
        super().__init__(host, port, context=tls, timeout=20)
        self._name, self._own_tls = name, tls

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._own_tls.wrap_socket(self.sock, server_hostname=self._name)


async def until(question: Callable[[], Any], wanted: Any, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while await question() != wanted:
            await asyncio.sleep(0.02)


def quick() -> Backoff:
    return Backoff(0.01, 0.05)


def parts_of(
    store: ObjectStore,
    holder: str,
    *,
    own: bool,
    wall: Callable[[], float] = time.time,
    settings: DialectSettings | None = None,
) -> AdmissionParts:
    api = ApiCluster(store.server.config(), backoff=quick)
    objects = WebhookObjects(api.connection, NAMESPACE, NAME)
    return AdmissionParts(
        api.connection,
        objects,
        NAME,
        AdmissionState(settings),
        PodTemplates(api.connection, wall=wall),
        Election(api, NAMESPACE, NAME, holder),
        CertificateKeeper(objects, NAMES, wall=wall) if own else None,
    )


@asynccontextmanager
async def served(
    store: ObjectStore,
    holder: str = "a",
    *,
    own: bool = False,
    pki: Path = PKI,
    most_clients: int = 64,
    settings: DialectSettings | None = None,
    refuses_uncounted: bool = True,
) -> AsyncIterator[Served]:
    """own: with a certificate of its own; else with files."""
    parts = parts_of(store, holder, own=own, settings=settings)
    parts = replace(parts, refuses_uncounted=refuses_uncounted)
    service = AdmissionService(parts)
    options = HttpOptions() if own else HttpOptions(cert=pki / "server.crt", key=pki / "server.key")
    access = HttpAccess(options, frozenset(NAMES), parts.keeper.tls if parts.keeper else None)
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, service.pages(), access, (MUTATE,), most_clients=most_clients)
    run = asyncio.create_task(service.run())
    try:
        yield Served(listening.getsockname()[1], service, NAMES[0] if own else "127.0.0.1")
    finally:
        run.cancel()
        await asyncio.wait([run])
        await asyncio.to_thread(server.close)

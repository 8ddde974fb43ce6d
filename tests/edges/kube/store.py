"""An API server that keeps objects: versions, conflicts, selectors, patches and watches, as far as agents use
them. On top of the scripted one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.edges.kube.scripted import Answer, Request, ScriptedServer, Stream, api_server, status

Json = dict[str, Any]
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_COLLECTIONS = (
    "nodes",
    "pods",
    "leases",
    "configmaps",
    "secrets",
    "deployments",
    "resourceslices",
    "resourceclaims",
    "resourceclaimtemplates",
    "deviceclasses",
    "mutatingwebhookconfigurations",
    "resourcequotas",
)


def leases_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def templates_path(namespace: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"


def secrets_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"


def pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def claims_path(namespace: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"


def config_maps_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


@dataclass
class _Watch:
    request: Request
    stream: Stream
    sent: int


@dataclass
class ObjectStore:
    """objects: by collection and name. log: every version of every object, oldest first. noticed: called with
    the collection and the object at every change. refuse: an answer in place of the true one, or None.
    drops: takes fields out of an object that is written, as a server whose feature gate is off does.
    version: of the server.
    """

    server: ScriptedServer
    objects: dict[str, dict[str, Json]] = field(default_factory=dict)
    log: list[tuple[str, str, Json]] = field(default_factory=list)
    noticed: Callable[[str, Json], None] = lambda collection, found: None
    refuse: Callable[[Request], Answer | None] = lambda request: None
    events: list[Json] = field(default_factory=list)
    drops: Callable[[Json], None] = lambda found: None
    version: str = "v1.37.2"
    conflicts: int = 0
    _version: int = 0
    _owned: dict[str, Json] = field(default_factory=dict)
    _opening: list[Request] = field(default_factory=list)
    _watches: list[_Watch] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, collection: str, found: Json, kind: str = "MODIFIED") -> Json:
        """Make it so, whatever there was."""
        self._version += 1
        found = copy.deepcopy(found)
        meta = found["metadata"]
        meta["resourceVersion"] = str(self._version)
        meta.setdefault("uid", f"uid-{meta['name']}")
        self.objects.setdefault(collection, {})[meta["name"]] = found
        self.log.append((collection, kind, found))
        self._news.set()
        self.noticed(collection, found)
        return found

    def node(self, name: str, **labels: str) -> None:
        self.put(NODES, {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {}}, "ADDED")

    def remove(self, collection: str, name: str) -> None:
        """As somebody who deletes it."""
        self.put(collection, self.objects[collection][name], "DELETED")
        del self.objects[collection][name]

    def annotate(self, collection: str, name: str, **annotations: str | None) -> None:
        """As a person does; ``_`` in a key stands for nothing else than itself."""
        self._merge(collection, name, {"metadata": {"annotations": annotations}})

    # --- requests ---

    def answer(self, request: Request) -> Answer:
        if (refused := self.refuse(request)) is not None:
            return refused
        if "/events" in request.path:
            self.events += [request.json] if request.method == "POST" else []
            return Answer({}, 201)
        if request.watches:
            self._opening.append(request)
            self._news.set()
            return Answer({})
        if request.path == "/version":
            return Answer({"gitVersion": self.version})
        if request.path in self.objects or request.path.endswith(_COLLECTIONS):
            return self._create(request) if request.method == "POST" else self._list(request)
        collection, _, name = request.path.removesuffix("/status").rpartition("/")
        if name not in self.objects.get(collection, {}):
            return status(404, "NotFound", f"{name} not found")
        match request.method:
            case "GET":
                return Answer(self.objects[collection][name])
            case "PUT":
                return self._replace(collection, name, request.json)
            case "DELETE":
                return self._delete(collection, name, request.json)
            case _:
                return self._patch(collection, name, request)

    def _list(self, request: Request) -> Answer:
        paths = [path for path in self.objects if _lists(request.path, path)]
        rows = [one for path in paths for one in self.objects[path].values() if _selected(one, request)]
        return Answer({"metadata": {"resourceVersion": str(self._version)}, "items": rows})

    def _create(self, request: Request) -> Answer:
        found = request.json
        meta = found["metadata"]
        if prefix := meta.pop("generateName", ""):
            meta["name"] = f"{prefix}{self._version:05d}"
        if meta["name"] in self.objects.get(request.path, {}):
            return status(409, "AlreadyExists", f"{meta['name']} exists")
        self.drops(found)
        return Answer(self.put(request.path, found, "ADDED"), 201)

    def _delete(self, collection: str, name: str, body: Json) -> Answer:
        meta = self.objects[collection][name]["metadata"]
        wanted = body.get("preconditions", {})
        if any(wanted[key] != meta[key] for key in wanted):
            self.conflicts += 1
            return status(409, "Conflict", "the object has been modified")
        self.remove(collection, name)
        return Answer({"kind": "Status", "status": "Success"})

    def _replace(self, collection: str, name: str, body: Json) -> Answer:
        before = self.objects[collection][name]
        if body["metadata"].get("resourceVersion") != before["metadata"]["resourceVersion"]:
            self.conflicts += 1
            return status(409, "Conflict", "the object has been modified")
        body["metadata"].setdefault("uid", before["metadata"]["uid"])
        self.drops(body)
        return Answer(self.put(collection, body))

    def _patch(self, collection: str, name: str, request: Request) -> Answer:
        body = request.json
        version = body.get("metadata", {}).get("resourceVersion")
        if version and version != self.objects[collection][name]["metadata"]["resourceVersion"]:
            self.conflicts += 1
            return status(409, "Conflict", "the object has been modified")
        if "apply" in request.headers.get("content-type", ""):
            return Answer(self._apply(collection, name, body))
        return Answer(self._merge(collection, name, body))

    def _apply(self, collection: str, name: str, body: Json) -> Json:
        """Server-side apply of labels and annotations, by one field manager."""
        found = copy.deepcopy(self.objects[collection][name])
        if "status" in body:
            found["status"] |= body["status"]
            return self.put(collection, found)
        for part in ("labels", "annotations"):
            there = found["metadata"].setdefault(part, {})
            for key in self._owned.get(name, {}).get(part, {}):
                there.pop(key, None)
            there |= body["metadata"][part]
        self._owned[name] = body["metadata"]
        return self.put(collection, found)

    def _merge(self, collection: str, name: str, body: Json) -> Json:
        found = copy.deepcopy(self.objects[collection][name])
        for part in ("labels", "annotations"):
            there = found["metadata"].setdefault(part, {})
            for key, value in (body.get("metadata", {}).get(part) or {}).items():
                there.pop(key, None) if value is None else there.update({key: value})
        if "ownerReferences" in (meta := body.get("metadata", {})):
            found["metadata"]["ownerReferences"] = meta["ownerReferences"]
        for row in (body.get("status") or {}).get("conditions", ()):
            rows = found["status"].setdefault("conditions", [])
            rows[:] = [one for one in rows if one["type"] != row["type"]] + [row]
        found["data"] = {**found.get("data", {}), **body.get("data", {})}
        return self.put(collection, found)

    # --- watches ---

    async def pump(self) -> None:
        """Send what has happened to those who watch, until it is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await asyncio.sleep(0)  # the stream of a watch comes just after its request
            while not self.server.streams.empty():
                self._watches.append(_Watch(self._opening.pop(0), self.server.streams.get_nowait(), 0))
            for watch in self._watches:
                await self._send(watch)

    async def _send(self, watch: _Watch) -> None:
        since = int(watch.request.query["resourceVersion"] or 0)
        for collection, kind, found in self.log[watch.sent :]:
            watch.sent += 1
            new = int(found["metadata"]["resourceVersion"]) > since
            if new and collection == watch.request.path and _selected(found, watch.request):
                try:
                    await watch.stream.send(kind, found)
                except ConnectionError:
                    watch.stream.ended.set()


def _lists(asked: str, path: str) -> bool:
    """Whether a list holds these objects: those of one collection, or of all its namespaces."""
    api, _, kind = asked.rpartition("/")
    return path == asked or (path.startswith(f"{api}/namespaces/") and path.endswith(f"/{kind}"))


def _selected(found: Json, request: Request) -> bool:
    fields = [one for one in request.query.get("fieldSelector", "").split(",") if one]
    labels = dict(one.split("=") for one in request.query.get("labelSelector", "").split(",") if one)
    meta = found["metadata"]
    return all(_has(found, one) for one in fields) and labels.items() <= (meta.get("labels") or {}).items()


def _has(found: Json, term: str) -> bool:
    """``metadata.name=n1``, ``spec.nodeName!=``."""
    path, equals, value = term.partition("!=") if "!=" in term else term.partition("=")
    part: Any = found
    for key in path.split("."):
        part = part.get(key, {})
    return ((part or "") == value) is (equals == "=")


@asynccontextmanager
async def object_store() -> AsyncIterator[ObjectStore]:
    """A server with nothing in it."""
    async with api_server() as server:
        store = ObjectStore(server)
        server.answer = store.answer
        task = asyncio.create_task(store.pump())
        try:
            yield store
        finally:
            task.cancel()
            await asyncio.wait([task])


def rollout_objects(store: ObjectStore, namespace: str, name: str, slots: int, **data: str) -> None:
    """The ConfigMap and the Leases of a rollout, as the chart makes them."""
    meta = {"name": name, "namespace": namespace}
    store.put(config_maps_path(namespace), {"metadata": meta, "data": {"maxChanging": str(slots), **data}})
    for number in range(slots):
        lease = {
            "name": f"{name}-{number}",
            "namespace": namespace,
            "labels": {"partage.dev/rollout": name},
            "annotations": {"meta.helm.sh/release-name": "partage"},
        }
        store.put(leases_path(namespace), {"metadata": lease})

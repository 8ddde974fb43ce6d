"""The whole server over HTTP, against an API server that keeps objects."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from partage.edges.kube.connection import Backoff, Connection
from partage.scheduler.decide.node_scores import ExtenderPolicy
from partage.scheduler.extender import Extender
from partage.scheduler.service import PRIORITIZE, ExtenderService
from partage.serve_http.http import MOST_BODY, HttpServer
from partage.serve_http.http_access import listen
from tests.edges.kube.store import NODES, PODS, SLICES, ObjectStore, object_store
from tests.scheduler.objects import MEMORY, claim, classes, device, node, pod, slices

CLAIMS, CLASSES = (f"/apis/resource.k8s.io/v1/{name}" for name in ("resourceclaims", "deviceclasses"))
N = ["n0", "n1", "n2"]
WAITS = pod("w", 4000, claims=["mine"])
QUICK = lambda: Backoff(0.01, 0.05)  # noqa: E731


def filled(store: ObjectStore) -> None:
    for one in classes():
        store.put(CLASSES, one)
    for name in N:
        store.put(NODES, node(name))
        store.put(SLICES, slices(name, [device(0), device(1)]))
    half = MEMORY // 2
    store.put(CLAIMS, claim("half", 1, half, given={"n1": ["gpu-0"]}, consumed={"memory": half}))
    store.put(CLAIMS, claim("mine", 1, half))
    store.put(PODS, pod("a", 4000, claims=["half"], on="n1"))
    store.put(PODS, WAITS)


class Asking:
    """An extender that is served."""

    def __init__(self, port: int, service: ExtenderService) -> None:
        self.port, self.service = port, service

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, method, path, body, headers)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()
        finally:
            connection.close()

    async def ranks(self) -> dict[str, int]:
        status, answer = await self.ask("POST", PRIORITIZE, {"Pod": WAITS, "NodeNames": N})
        assert status == 200
        return {row["Host"]: row["Score"] for row in answer}

    async def best(self) -> set[str]:
        return {name for name, rank in (await self.ranks()).items() if rank == 10}

    async def until(self, question: Callable[[], Any], wanted: Any) -> None:
        async with asyncio.timeout(20):
            while await question() != wanted:
                await asyncio.sleep(0.02)

    async def ready(self) -> int:
        return (await self.ask("GET", "/healthz"))[0]


@asynccontextmanager
async def served(store: ObjectStore) -> AsyncIterator[Asking]:
    connection = Connection(store.server.config(), QUICK)
    service = ExtenderService(connection, Extender(ExtenderPolicy.SSP))
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, service.pages(), posts=(PRIORITIZE,))
    run = asyncio.create_task(service.run())
    try:
        yield Asking(listening.getsockname()[1], service)
    finally:
        run.cancel()
        await asyncio.wait([run])
        await asyncio.to_thread(server.close)


async def test_it_follows_the_cluster_and_writes_nothing() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as one:
            await one.until(one.ready, 200)
            assert await one.best() == {"n1"}
            # The hole is taken: another node is as good as a third.
            half = MEMORY // 2
            store.put(CLAIMS, claim("b", 1, half, given={"n1": ["gpu-0"]}, consumed={"memory": half}))
            store.put(CLAIMS, claim("c", 1, half, given={"n2": ["gpu-1"]}, consumed={"memory": half}))
            await one.until(one.best, {"n2"})
            store.remove(CLAIMS, "c")
            store.remove(CLAIMS, "b")
            await one.until(one.best, {"n1"})
            status, text = await one.ask("GET", "/metrics")
            assert status == 200
            assert "partage_extender_seconds_count" in text
            assert (await one.ask("GET", "/livez"))[0] == 200
        assert {request.method for request in store.server.requests} == {"GET"}


async def test_one_that_is_started_anew_knows_the_same_and_two_answer_alike() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as one:
            await one.until(one.ready, 200)
            before = await one.ranks()
            async with served(store) as second:
                await second.until(second.ready, 200)
                assert await second.ranks() == before
        async with served(store) as again:
            await again.until(again.ready, 200)
            assert await again.ranks() == before


async def test_while_the_api_server_is_away_it_answers_by_what_it_knew() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as one:
            await one.until(one.ready, 200)
            before = await one.ranks()
            await store.server.stop()
            await one.until(lambda: _following(one), 0.0)
            assert await one.ranks() == before
            assert await one.ready() == 200
            store.remove(CLAIMS, "half")
            store.put(CLAIMS, claim("d", 1, 1, given={"n0": ["gpu-0"]}, consumed={"memory": MEMORY // 2}))
            await store.server.start()
            await one.until(one.best, {"n0"})


async def _following(one: Asking) -> float:
    text = (await one.ask("GET", "/metrics"))[1]
    (line,) = [line for line in text.splitlines() if line.startswith("partage_extender_following ")]
    return float(line.split()[1])


async def test_without_the_claims_api_units_of_the_device_plugin_are_scored() -> None:
    async with object_store() as store:
        from tests.edges.kube.scripted import status as refused

        store.refuse = lambda request: (
            refused(404, "NotFound", "none") if "resource.k8s.io" in request.path else None
        )
        for name, count in zip(N, ("8", "8", "2"), strict=True):
            store.put(NODES, node(name, nvidia_com__gpu=count))
        store.put(PODS, pod("a", 4000, on="n0", nvidia_com__gpu="7"))
        waits = pod("w", 4000, nvidia_com__gpu="1")
        store.put(PODS, waits)
        async with served(store) as one:
            await one.until(one.ready, 200)
            status, answer = await one.ask("POST", PRIORITIZE, {"Pod": waits, "NodeNames": N})
            assert status == 200
            assert {row["Host"]: row["Score"] for row in answer}["n0"] == 10


async def test_bodies_are_bounded_and_other_paths_take_none() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as one:
            await one.until(one.ready, 200)
            assert (await one.ask("POST", "/filter", {}))[0] in (400, 404)
            assert (await one.ask("GET", "/prioritize"))[0] == 400
            assert (await one.ask("PUT", PRIORITIZE, {}))[0] in (400, 501)
            status, told = await one.ask("POST", PRIORITIZE, None, **{"Content-Length": str(MOST_BODY + 1)})
            assert (status, told) == (413, {"error": "a body has at most 8 MiB"})
            names = [f"name-{number:0250}" for number in range(20_000)]
            body = {"Pod": WAITS, "Nodes": None, "NodeNames": names}
            status, answer = await one.ask("POST", PRIORITIZE, body)
            assert (status, len(answer)) == (200, 20_000)
            chunks = await asyncio.to_thread(_in_chunks, one.port, MOST_BODY + 1)
            assert chunks == 413


def _in_chunks(port: int, size: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        parts = (b"[" * (1 << 16) for _ in range(size // (1 << 16) + 1))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has answered already
            connection.request(
                "POST", PRIORITIZE, parts, encode_chunked=True, headers={"Transfer-Encoding": "chunked"}
            )
        return connection.getresponse().status
    finally:
        connection.close()

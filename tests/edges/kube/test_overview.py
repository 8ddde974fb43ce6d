"""All Nodes and the pods on them, followed through what can happen to a watch of many objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from partage.edges.kube.connection import Connection
from partage.edges.kube.port import ClusterPod
from partage.edges.kube.reading import watch_nodes, watch_pods
from partage.edges.kube.watch import CollectionState
from tests.edges.kube.scripted import Answer, Request, ScriptedServer, api_server, quick, status

GPU = "nvidia.com/gpu"


class Follower:
    """What a watch has said."""

    def __init__(self) -> None:
        self.states: list[CollectionState[Any]] = []

    def seen(self, state: CollectionState[Any]) -> None:
        self.states.append(state)

    async def until(self, true_of: Callable[[CollectionState[Any]], bool]) -> CollectionState[Any]:
        async with asyncio.timeout(10):
            while not self.states or not true_of(self.states[-1]):
                await asyncio.sleep(0.002)
        return self.states[-1]


@asynccontextmanager
async def following(
    answer: Callable[[Request], Answer], *, pods: bool
) -> AsyncIterator[tuple[ScriptedServer, Follower]]:
    async with api_server() as server:
        server.answer = answer
        follower = Follower()
        connection = Connection(server.config(), quick)
        watch = (
            watch_pods(connection, follower.seen, lambda pod: bool(pod.requests))
            if pods
            else watch_nodes(connection, follower.seen)
        )
        task = asyncio.create_task(watch)
        try:
            yield server, follower
        finally:
            task.cancel()
            await asyncio.wait([task])


def pod(name: str, version: int, *, namespace: str = "team", **requests: Any) -> dict[str, Any]:
    amounts = {GPU: str(requests["gpus"])} if "gpus" in requests else {"cpu": "1"}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": str(version)},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"requests": amounts}}]},
        "status": {"phase": "Running", "startTime": "2026-03-01T09:30:00Z"},
    }


def items(version: int, *rows: dict[str, Any], more: str = "") -> Answer:
    return Answer({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(rows)})


async def test_pods_of_several_namespaces_and_pages_are_kept_where_they_ask_for_gpus() -> None:
    def answer(request: Request) -> Answer:
        if request.query.get("continue"):
            return items(7, pod("b", 3, gpus=2), pod("plain", 4))
        return items(7, pod("a", 1, gpus=1), pod("a", 2, namespace="other", gpus=1), more="page2")

    async with following(answer, pods=True) as (server, follower):
        state = await follower.until(lambda state: state.lists == 1)
        assert sorted(state.objects) == ["other/a", "team/a", "team/b"]
        first: ClusterPod = state.objects["team/b"]
        assert (first.node, first.started_at, first.requests) == ("n1", "2026-03-01T09:30:00Z", {GPU: 2})
        stream = await server.streams.get()
        lists = [one for one in server.requests if not one.watches]
        assert [one.query.get("limit") for one in lists] == ["500", "500"]
        assert "spec.nodeName!=" in lists[0].query["fieldSelector"].split(",")
        assert "limit" not in server.requests[-1].query
        # As a real server sends it: a bookmark has the shape of a pod with nothing in it.
        await stream.send(
            "BOOKMARK",
            {"kind": "Pod", "metadata": {"resourceVersion": "9"}, "spec": {"containers": None}, "status": {}},
        )
        await stream.send("ADDED", pod("late", 10, gpus=4))
        await stream.send("MODIFIED", pod("a", 11, namespace="other"))
        await stream.send("DELETED", pod("b", 12, gpus=2))
        state = await follower.until(lambda state: "team/b" not in state.objects)
        assert sorted(state.objects) == ["team/a", "team/late"], "what asks for nothing any more has gone"
        told = len(follower.states)
        await stream.send("ADDED", pod("plain-2", 13))
        await stream.send("ADDED", pod("last", 14, gpus=1))
        await follower.until(lambda state: "team/last" in state.objects)
        assert len(follower.states) == told + 1, "a pod without GPUs is no news"


async def test_a_pod_takes_what_the_scheduler_counts_of_its_init_containers_and_sidecars() -> None:
    def container(count: int, **more: str) -> dict[str, Any]:
        return {"name": f"c{count}", "resources": {"requests": {GPU: str(count)}}, **more}

    several = pod("a", 1)
    several["spec"] |= {
        "initContainers": [container(1, restartPolicy="Always"), container(4)],
        "containers": [container(2)],
        "overhead": {"cpu": "250m"},
    }
    async with following(lambda request: items(7, several), pods=True) as (_, follower):
        state = await follower.until(lambda state: state.lists == 1)
        assert state.objects["team/a"].requests == {GPU: 5}


async def test_a_watch_that_is_too_old_is_listed_again_and_what_has_gone_meanwhile_is_gone() -> None:
    versions = iter((items(7, pod("a", 1, gpus=1)), items(90, pod("b", 80, gpus=1))))

    def answer(request: Request) -> Answer:
        return Answer({}) if request.watches else next(versions)

    async with following(answer, pods=True) as (server, follower):
        stream = await server.streams.get()
        await follower.until(lambda state: list(state.objects) == ["team/a"])
        await stream.send("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
        state = await follower.until(lambda state: state.lists == 2)
        assert list(state.objects) == ["team/b"]
        assert not state.trouble


async def test_a_missing_right_is_told_as_such_and_ends_when_it_is_given() -> None:
    allowed = False

    def answer(request: Request) -> Answer:
        if allowed:
            return items(7, {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "1"}})
        said = 'nodes is forbidden: User "web" cannot list resource "nodes" in API group ""'
        return status(403, "Forbidden", said)

    async with following(answer, pods=False) as (_, follower):
        state = await follower.until(lambda state: state.forbidden)
        assert "GET /api/v1/nodes is not permitted" in state.trouble
        assert 'cannot list resource "nodes"' in state.trouble
        allowed = True
        state = await follower.until(lambda state: bool(state.objects))
        assert (state.trouble, state.forbidden) == ("", False)


async def test_an_api_server_that_is_away_keeps_what_was_known_and_since_when() -> None:
    row = {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "1"}}
    async with following(lambda request: items(7, row), pods=False) as (server, follower):
        await server.streams.get()
        await server.stop()
        state = await follower.until(lambda state: bool(state.trouble))
        assert "cannot be reached" in state.trouble
        assert list(state.objects) == ["n1"]
        assert not state.forbidden
        began = state.since
        await server.start()
        state = await follower.until(lambda state: not state.trouble)
        assert state.since > began

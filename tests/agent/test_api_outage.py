"""An API server that is away for an hour, busy, or forgetful, and clocks that jump; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from partage.agent.status.status import AgentStatus
from partage.edges.kube.cluster import ApiCluster
from partage.kubernetes.agent.own_node import OwnNode
from partage.model.health import HealthState, HealthStatus
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.report import Report
from tests.agent.test_cluster import NodeServer
from tests.edges.kube.scripted import Answer, Request, Stream, api_server, status
from tests.plan.reconcile.test_planner import SLICED, WHOLE, desired_of, observe
from tests.plan.test_report import FIRST, ONE
from tests.virtual_time import run_in_virtual_time

HOUR_S = 3600.0
BOOKMARK_S, KUBELET_S = 60.0, 300.0
BACK_S = 75.0
"""Within this all is written once the API server is back: the longest pauses are 30 s and 60 s."""
ILL = HealthStatus(HealthState.UNHEALTHY, "XID 79")
REPLICAS = "nvidia.com/gpu.replicas"


def report(desired: DesiredState, number: int, **more: Any) -> Report:
    made = replace(FIRST.made, number=number)
    node = KnownNode(desired.inventory)
    found = replace(FIRST, made=made, node=node, offer=desired.offer, policy_in_force=desired.policy)
    return replace(found, **more)


@dataclass
class Fleet:
    """One agent's cluster tasks beside an API server. wall_s: how far the wall clock is off."""

    api: NodeServer
    status: AgentStatus
    own: OwnNode
    wall_s: float = 0.0
    known: list[str] = field(default_factory=list)

    async def until(self, true_of: Callable[[], object], limit_s: float = BACK_S) -> float:
        """How long that took, in virtual seconds."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not true_of():
            assert loop.time() - began_s < limit_s
            await asyncio.sleep(0.25)
        return loop.time() - began_s

    def written(self) -> bool:
        """What the last report says is in the cluster, and the watch is open."""
        replicas = "2" if self.sliced else "1"
        ready = self.api.conditions.get("PartageGpusHealthy", {}).get("status") == str(not self.ill)
        return self.api.labels.get(REPLICAS) == replicas and ready and not self.own.trouble

    @property
    def sliced(self) -> bool:
        assert self.status.report is not None
        return self.status.report.policy_in_force == SHARED.policy

    @property
    def ill(self) -> bool:
        assert self.status.report is not None
        return any(gpu.health == ILL for gpu in self.status.report.gpus)

    def requests_since(self, number: int) -> list[Request]:
        return self.api.server.requests[number:]


INVENTORY = observe()
ALONE, SHARED = (
    desired_of(WHOLE, INVENTORY),
    desired_of(SLICED.replace("index: 0", "index: [0, 1]"), INVENTORY),
)


async def _as_an_api_server(api: NodeServer, stream: Stream, lasts_s: float) -> None:
    """Bookmarks, and an end: the kubelet writes its Node now and then, and watches have a time."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while loop.time() - began_s < lasts_s and not stream.ended.is_set():
        await asyncio.sleep(BOOKMARK_S)
        if int((loop.time() - began_s) % KUBELET_S) < BOOKMARK_S:
            api.version += 1
            await stream.send("MODIFIED", api._node())
        elif not stream.ended.is_set():
            await stream.send("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": str(api.version)}})
    if not stream.ended.is_set():
        stream.end()


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    loop = asyncio.get_running_loop()
    async with api_server() as server:
        api = NodeServer(server)
        beside: set[asyncio.Task[None]] = set()
        answers = api.answer

        async def answer(request: Request) -> Answer:
            if request.watches:
                lasts_s = float(request.query["timeoutSeconds"])
                beside.add(asyncio.create_task(_opened(lasts_s)))
            return await answers(request)

        async def _opened(lasts_s: float) -> None:
            while server.streams.empty():
                await asyncio.sleep(0)
            api.stream = server.streams.get_nowait()
            await _as_an_api_server(api, api.stream, lasts_s)

        server.answer = answer
        found: list[Fleet] = []
        cluster = ApiCluster(
            server.config(),
            "n1",
            clock=loop.time,
            wall=lambda: 1.8e9 + loop.time() + (found[0].wall_s if found else 0.0),
        )
        node = AgentStatus(loop.time)
        own = OwnNode(cluster, "n1", node, lambda: None, know=lambda _: None)
        found.append(Fleet(api, node, own))
        node.publish(report(ALONE, 1))
        task = asyncio.create_task(own.run())
        try:
            await found[0].until(found[0].written)
            yield found[0]
        finally:
            for one in (task, *beside):
                one.cancel()
            await asyncio.wait([task, *beside])
            assert not task.done() or task.cancelled() or task.exception() is None


async def _hour_away(way: str) -> tuple[int, float]:
    """How many requests arrive in an hour in which the API server fails; how long all takes afterwards."""
    async with fleet() as node:
        server = node.api.server
        works = server.answer
        if way == "gone":
            await server.stop()
        else:
            answers = {
                "503": status(503, "ServiceUnavailable", "no etcd"),
                "429": status(429, "TooManyRequests", "slow down", after=5),
                "drops": Answer(drop=True),
            }
            server.answer = lambda _: answers[way]
            assert node.api.stream is not None
            node.api.stream.drop()
        asked = len(server.requests)
        await asyncio.sleep(HOUR_S / 2)
        node.status.publish(report(SHARED, 2, gpus=(replace(ONE, health=ILL),)))
        await asyncio.sleep(HOUR_S / 2)
        assert node.own.trouble
        assert not node.written()
        requests = len(node.requests_since(asked))
        assert server.answer is not works or way == "gone"
        server.answer = works
        if way == "gone":
            await server.start()
        took_s = await node.until(lambda: node.written() and bool(node.api.events))
        assert [one["reason"] for one in node.api.events] == ["GpuUnhealthy"], "told once, and not lost"
        return requests, took_s


@pytest.mark.parametrize("way", ["gone", "503", pytest.param("429", marks=pytest.mark.real), "drops"])
def test_after_an_hour_without_the_api_server_all_is_written_and_nothing_was_lost(way: str) -> None:
    requests, _ = run_in_virtual_time(_hour_away(way))
    assert requests < 600, "pauses grow: ten requests a minute at most, of all tasks together"


async def _at_rest() -> list[str]:
    async with fleet() as node:
        await asyncio.sleep(120)
        asked = len(node.api.server.requests)
        await asyncio.sleep(2 * HOUR_S)
        assert node.written()
        return [f"{one.method} {one.path}" for one in node.requests_since(asked)]


def test_at_rest_there_is_one_watch_and_less_than_one_request_in_ten_minutes() -> None:
    """Two hours: watches end after half an hour to an hour, and go on where they were."""
    requests = run_in_virtual_time(_at_rest())
    assert set(requests) == {"GET /api/v1/nodes"}, "nothing is polled, and nothing written"
    assert 2 <= len(requests) <= 5


async def _forgets() -> list[Request]:
    """The server has forgotten the version of the watch, again and again, for ten minutes."""
    async with fleet() as node:
        server, works = node.api.server, node.api.server.answer
        gone = status(410, "Expired", "too old resource version")

        async def forgetful(request: Request) -> Answer:
            if request.watches:
                return gone
            found = works(request)
            return found if isinstance(found, Answer) else await found

        server.answer = forgetful
        assert node.api.stream is not None
        node.api.stream.end()
        asked = len(server.requests)
        await asyncio.sleep(300)
        node.status.publish(report(SHARED, 2))
        await node.until(lambda: node.api.labels.get(REPLICAS) == "2")
        await asyncio.sleep(300)
        requests = node.requests_since(asked)
        server.answer = works
        await node.until(node.written)
        await node.api.edit(**{REPLICAS: "9"})
        await node.until(lambda: node.api.labels[REPLICAS] == "2")
        return requests


def test_versions_that_expire_again_and_again_are_listed_anew_with_growing_pauses() -> None:
    requests = run_in_virtual_time(_forgets())
    lists = [one for one in requests if one.method == "GET" and not one.watches]
    assert 5 < len(lists) < 80, "after every refusal, at most every 15 s in the end"


async def _wall_clock_jumps() -> list[str]:
    async with fleet() as node:
        await asyncio.sleep(BACK_S)  # all conditions are written
        asked = len(node.api.server.requests)
        for off_s in (86400.0, -86400.0, 10 * 365 * 86400.0, 0.0):
            node.wall_s = off_s
            await asyncio.sleep(120)
        at_rest = [f"{one.method} {one.path}" for one in node.requests_since(asked)]
        node.wall_s = -86400.0
        node.status.publish(report(SHARED, 2, gpus=(replace(ONE, health=ILL),)))
        await node.until(lambda: node.written() and bool(node.api.events), 10.0)
        return at_rest


def test_a_wall_clock_that_jumps_changes_nothing() -> None:
    assert run_in_virtual_time(_wall_clock_jumps()) == []

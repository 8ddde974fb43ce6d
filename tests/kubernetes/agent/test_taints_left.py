"""The end of an agent whose API server is silent: the taints that stay are said."""

from __future__ import annotations

import asyncio

import pytest

from partage.agent.status.status import AgentStatus
from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.port import WatchState
from partage.kubernetes.agent.node_taints import NodeTaints
from partage.kubernetes.agent.node_writer import ClusterIntervals
from partage.model.node_labels import NO_SCHEDULE, NodeTaint
from tests.edges.kube.scripted import Answer, Request, api_server, node, quick, status
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_taints_that_cannot_be_taken_away_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """On Python 3.11.0 to 3.11.2 a deadline in a task that is being cancelled ended without a word."""
    silent = asyncio.Event()

    async def answer(_: Request) -> Answer:
        if silent.is_set():
            await asyncio.Event().wait()
        tainted = node(1)
        tainted["spec"] = {"taints": [{"key": NodeTaint.NOT_READY.key, "effect": NO_SCHEDULE, "value": ""}]}
        return Answer(tainted)

    async with api_server() as server:
        server.answer = answer
        cluster = ApiCluster(server.config(), backoff=quick)
        found = await cluster.node("n1")
        taints = NodeTaints(
            cluster,
            "n1",
            AgentStatus(lambda: 0.0),
            asked=(),
            watched=lambda: WatchState(trouble="", node=found),
            ask=lambda: None,
        )
        task = asyncio.create_task(taints.run())
        await asyncio.sleep(0)
        silent.set()
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()
    (said,) = [one for one in caplog.records if one.getMessage() == "taints stay on the Node"]
    assert said.__dict__["reason"] == "no answer within 2 s"


async def test_a_write_that_met_a_conflict_does_not_make_the_next_one_contested() -> None:
    """Nobody undid it: it was never written. The next change waited for 2.5 s and more."""
    writes = asyncio.Queue[int]()

    async def answer(request: Request) -> Answer:
        if request.method == "PATCH":
            writes.put_nowait(1)
            if writes.qsize() == 1:
                return status(409, "Conflict", "the Node has been modified")
        tainted = node(1)
        tainted["spec"] = {"taints": [{"key": NodeTaint.NOT_READY.key, "effect": NO_SCHEDULE, "value": ""}]}
        return Answer(tainted)

    async with api_server() as server:
        server.answer = answer
        cluster = ApiCluster(server.config(), backoff=quick)
        found = await cluster.node("n1")
        taints = NodeTaints(
            cluster,
            "n1",
            AgentStatus(lambda: 0.0),
            asked=(),
            watched=lambda: WatchState(trouble="", node=found),
            ask=lambda: None,
            intervals=ClusterIntervals(settle_s=0.01, retry_s=0.01, contested_s=60.0),
        )
        taints._wanted = {NodeTaint.NOT_READY: False}
        task = asyncio.create_task(taints.run())
        async with asyncio.timeout(10):
            while writes.qsize() < 3:
                taints.node_seen()
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task}, timeout=10)

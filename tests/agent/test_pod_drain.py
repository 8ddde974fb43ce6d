"""Pods that are evicted because a GPU has to change, against an API server on real sockets."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from partage.agent.cluster.node_writer import ClusterIntervals
from partage.agent.cluster.pod_drain import PodDrain
from partage.agent.status.status import AgentStatus
from partage.edges.kube.cluster import ApiCluster
from partage.plan.cluster.events import NodeEvent
from tests.agent.harness import healthy, ids, native, registered
from tests.agent.test_cluster import _agent, _until
from tests.edges.kube.scripted import Answer, api_server, quick, status
from tests.kubelet_script import held
from tests.plan.cluster.test_drain import waiting
from tests.plan.cluster.test_events import entry

QUICK = ClusterIntervals(drain_s=0.01, drain_longest_s=0.02, drain_confirm_s=0.05)
SHARED = "nvidia.com/gpu.shared"


class PodServer:
    """An API server with pods. evicted: names with the UIDs that were asked for. answers: to evictions."""

    def __init__(self, server) -> None:
        server.answer = self.answer
        self.pods = {name: {"uid": f"u-{name}"} for name in ("a", "b", "other")}
        self.evicted: list[tuple[str, str]] = []
        self.listed = 0
        self.eviction = Answer({}, 201)
        self.refused: dict[str, Answer] = {}

    def answer(self, request) -> Answer:
        if request.path.endswith("/eviction"):
            body = request.json
            self.evicted.append((body["metadata"]["name"], body["deleteOptions"]["preconditions"]["uid"]))
            return self.refused.get(body["metadata"]["name"], self.eviction)
        self.listed += 1
        items = [
            {
                "metadata": {"name": name, "namespace": "default", **meta},
                "spec": {"containers": []},
                "status": {"phase": "Running"},
            }
            for name, meta in self.pods.items()
        ]
        return Answer({"metadata": {}, "items": items})


@asynccontextmanager
async def _drain(report):
    """The task after this report, its API server, and the events that it told."""
    async with api_server() as server:
        api, node = PodServer(server), AgentStatus(lambda: 0.0)
        told: list[NodeEvent] = []
        node.publish(report)
        cluster = ApiCluster(server.config(), "n1", backoff=quick)
        drain = PodDrain(cluster, "n1", node, tell=told.extend, ask=lambda: None, intervals=QUICK)
        task = asyncio.create_task(drain.run())
        try:
            yield api, node, drain, told
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_the_pods_of_the_gpu_are_asked_by_their_uid_and_no_others():
    async with _drain(waiting(entry("a"), entry("b", share="GPU-a::1"))) as (api, node, _, told):
        await _until(lambda: len(told) >= 2, "evicted")
        assert set(api.evicted) == {("a", "u-a"), ("b", "u-b")}
        assert {(one.reason, one.about.uid) for one in told} == {
            ("DrainedForChange", "u-a"),
            ("DrainedForChange", "u-b"),
        }
        node.publish(waiting())
        await asyncio.sleep(0.1)
        listed = api.listed
        await asyncio.sleep(0.2)
        assert api.listed == listed, "nothing is asked when nothing is drained"


async def test_a_budget_is_honoured_and_the_pod_is_asked_again():
    async with _drain(waiting(entry("a"))) as (api, _, drain, told):
        cause = {"reason": "DisruptionBudget", "message": "no"}
        api.eviction = status(429, "TooManyRequests", "Cannot evict", details={"causes": [cause]})
        await _until(lambda: len(api.evicted) >= 2, "asked twice")
        assert {one.reason for one in told} == {"DrainNotAllowed"}
        assert drain.trouble == ""
        api.eviction = Answer({}, 201)
        await _until(lambda: told[-1].reason == "DrainedForChange", "evicted")


@pytest.mark.parametrize(
    "refusal",
    [
        status(500, "InternalError", "This pod has more than one PodDisruptionBudget"),
        status(403, "Forbidden", "a webhook denied the request"),
    ],
)
async def test_a_pod_that_cannot_be_asked_keeps_no_other_pod(refusal):
    async with _drain(waiting(entry("a"), entry("b", share="GPU-a::1"))) as (api, _, drain, told):
        api.refused["a"] = refusal
        await _until(lambda: told, "the other one evicted")
        assert {one.about.name for one in told} == {"b"}
        await _until(lambda: drain.trouble, "told")
        assert drain.trouble.startswith("pods are not evicted: default/a: ")


async def test_a_pod_that_is_not_named_any_more_when_the_cluster_has_answered_is_left_alone():
    async with _drain(waiting(entry("a"))) as (api, node, _, _):
        await _until(lambda: api.listed, "the pods asked for")
        node.publish(waiting(entry("b")))
        await _until(lambda: api.evicted, "the other one")
        assert {name for name, _ in api.evicted} == {"b"}


async def test_pods_that_end_already_that_are_static_or_elsewhere_are_left_alone():
    async with _drain(waiting(*(entry(name, share=f"GPU-a::{name}") for name in ("a", "b", "gone")))) as (
        api,
        *_,
    ):
        api.pods["a"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        api.pods["b"]["ownerReferences"] = [{"kind": "Node", "controller": True}]
        await _until(lambda: api.listed >= 3, "rounds")
        assert api.evicted == []


async def test_an_account_that_may_not_read_pods_is_told():
    async with api_server() as server:
        server.answer = lambda _: status(403, "Forbidden", "cannot list pods")
        node = AgentStatus(lambda: 0.0)
        node.publish(waiting(entry("a")))
        cluster = ApiCluster(server.config(), "n1", backoff=quick)
        drain = PodDrain(cluster, "n1", node, tell=lambda _: None, ask=lambda: None, intervals=QUICK)
        task = asyncio.create_task(drain.run())
        await _until(lambda: "cannot list pods" in drain.trouble, "told")
        task.cancel()
        await asyncio.wait([task])


async def test_after_the_deadline_free_shares_are_offered_as_before():
    four = "{select: all, time-slicing: {replicas: 4}}"
    async with _agent(policy=native(four), kubelet=True) as (here, api, agent, kubelet):
        calls = (await asyncio.to_thread(registered, kubelet, SHARED)).calls
        share = ids(kubelet, SHARED)[0]
        assert calls is not None
        calls.allocate([share])
        kubelet.pod_resources = held({"team/train": {"main": {SHARED: [share]}}})
        await asyncio.to_thread(agent.wait, lambda: agent.gpu(0).get("held") == 1, "held")
        await _until(lambda: api.applied, "the cluster is there", agent)
        here.write_policy(
            native("{select: {index: 0}, exclusive: {}, change: {drain: 1s}}", four.replace("all", "rest"))
        )
        await _until(lambda: len(healthy(kubelet, SHARED)) == 13, "withdrawn", agent)
        await _until(lambda: len(healthy(kubelet, SHARED)) == 16, "offered again", agent)
        gpu = await asyncio.to_thread(agent.gpu, 0)
        assert gpu["phase"] == "failed"
        assert "after a drain of 1 s it still waited for pod team/train" in gpu["reason"]
        await _until(lambda: api.events and api.events[-1]["reason"] == "ChangeFailed", "told", agent)
        kubelet.pod_resources = held({})
        await _until(lambda: len(healthy(kubelet, "nvidia.com/gpu")) == 1, "changed when it has ended", agent)

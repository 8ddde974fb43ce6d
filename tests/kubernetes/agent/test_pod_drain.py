"""Pods that are evicted because a GPU has to change, against an API server on real sockets."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from partage.agent.status.status import AgentStatus
from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.connection import CALL_S
from partage.kubernetes.agent.node_writer import ClusterIntervals
from partage.kubernetes.agent.pod_drain import PodDrain
from partage.kubernetes.decide.events import NodeEvent
from partage.model.ids import GpuUuid
from partage.model.policy import Drain, Policy, SparedPods
from tests.agent.harness import healthy, ids, native, registered
from tests.agent.test_cluster import _agent, _until
from tests.edges.kube.scripted import Answer, api_server, quick, status
from tests.kubelet_script import held
from tests.kubernetes.decide.test_drain import waiting
from tests.kubernetes.decide.test_events import entry

QUICK = ClusterIntervals(drain_s=0.01, drain_longest_s=0.02, drain_confirm_s=0.05)
SHARED = "nvidia.com/gpu.shared"


class PodServer:
    """An API server with pods. evicted: names with the UIDs that were asked for. specs: of some pods.

    slow: pods whose evictions are answered when ``go`` is set.
    """

    def __init__(self, server) -> None:
        server.answer = self.answer
        self.pods = {name: _of_controller(f"u-{name}", f"rs-{name}") for name in ("a", "b", "other")}
        self.specs: dict[str, dict[str, object]] = {}
        self.slow: set[str] = set()
        self.go = asyncio.Event()
        self.evicted: list[tuple[str, str]] = []
        self.listed = 0
        self.eviction = Answer({}, 201)
        self.refused: dict[str, Answer] = {}

    async def answer(self, request) -> Answer:
        if request.path.endswith("/eviction"):
            body = request.json
            name = body["metadata"]["name"]
            self.evicted.append((name, body["deleteOptions"]["preconditions"]["uid"]))
            if name in self.slow:
                await self.go.wait()
            return self.refused.get(name, self.eviction)
        self.listed += 1
        items = [
            {
                "metadata": {"name": name, "namespace": "default", **meta},
                "spec": {"containers": [], **self.specs.get(name, {})},
                "status": {"phase": "Running"},
            }
            for name, meta in self.pods.items()
        ]
        return Answer({"metadata": {}, "items": items})


def _of_controller(uid, controller):
    """The metadata of a pod."""
    owner = {"kind": "ReplicaSet", "uid": controller, "controller": True}
    return {"uid": uid, "ownerReferences": [owner]}


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


TWO = entry("a"), entry("b", share="GPU-a::1")


async def _is_quiet(api: PodServer) -> None:
    """Until the cluster was asked for its pods three times more."""
    listed = api.listed
    await _until(lambda: api.listed >= listed + 3, "rounds")


async def test_a_policy_that_is_taken_back_saves_the_pods_that_are_still_to_be_asked():
    """While the first eviction takes long, as behind a webhook that does not answer."""
    async with _drain(waiting(*TWO)) as (api, node, drain, told):
        api.slow = {"a"}
        await _until(lambda: api.evicted, "the first one")
        node.publish(replace(waiting(), policy_in_force=Policy(source="old.yaml")))
        api.go.set()
        await asyncio.sleep(0.2)
        assert api.evicted == [("a", "u-a")]
        assert told == []
        assert drain.trouble == ""


async def test_an_eviction_that_takes_long_is_given_up_when_the_policy_is_taken_back():
    """The API server ends a request whose connection has ended; the next one need not wait for its answer."""
    async with _drain(waiting(entry("a"))) as (api, node, _, told):
        api.slow = {"a"}
        await _until(lambda: api.evicted, "asked")
        node.publish(waiting(entry("a"), drain=None))
        node.publish(waiting(entry("b")))
        async with asyncio.timeout(CALL_S / 2):
            await _until(lambda: told, "the other one")
        assert api.evicted == [("a", "u-a"), ("b", "u-b")]
        assert {one.about.name for one in told} == {"b"}


async def test_pods_that_would_be_lost_or_that_the_system_needs_stay_and_it_is_said():
    async with _drain(waiting(*TWO)) as (api, node, drain, told):
        del api.pods["a"]["ownerReferences"]
        api.specs["b"] = {"priority": 2_000_001_000, "priorityClassName": "system-node-critical"}
        await _is_quiet(api)
        assert api.evicted == []
        assert drain.spared == {
            GpuUuid("GPU-a"): "not evicted: pod default/a has no controller that would make it again, "
            "pod default/b is system-critical"
        }
        assert {(one.reason, one.about.uid) for one in told} == {
            ("DrainSkipped", "u-a"),
            ("DrainSkipped", "u-b"),
        }
        assert len(told) == 2, "said once"
        node.publish(waiting(*TWO, drain=Drain(also=(SparedPods.BARE,))))
        await _until(lambda: api.evicted, "the bare one")
        assert drain.spared == {GpuUuid("GPU-a"): "not evicted: pod default/b is system-critical"}
        node.publish(waiting(*TWO, drain=Drain(also=tuple(SparedPods))))
        await _until(lambda: {name for name, _ in api.evicted} == {"a", "b"}, "both")
        assert drain.spared == {}


async def test_a_controller_that_makes_pods_for_the_same_share_again_loses_one():
    """As a DaemonSet does, whose pods come at once and are of this node."""
    async with _drain(waiting(entry("a"))) as (api, node, drain, told):
        await _until(lambda: api.evicted, "the first one")
        del api.pods["a"]
        for name in ("second", "third"):
            api.pods[name] = _of_controller(f"u-{name}", "rs-a")
            node.publish(waiting(entry(name)))
            await _until(lambda: drain.spared, "seen")
            await _is_quiet(api)
            assert name in drain.spared[GpuUuid("GPU-a")]
        assert {name for name, _ in api.evicted} == {"a"}
        assert [one.about.name for one in told if one.reason == "DrainSkipped"] == ["second", "third"]


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


async def test_the_report_says_who_is_not_evicted():
    four = "{select: all, time-slicing: {replicas: 4}}"
    async with _agent(policy=native(four), kubelet=True) as (here, api, agent, kubelet):
        bare = {
            "metadata": {"name": "train", "namespace": "team", "uid": "u"},
            "status": {"phase": "Running"},
        }
        node_answer = api.server.answer

        async def answer(request):
            if request.path == "/api/v1/pods":
                return Answer({"metadata": {}, "items": [bare]})
            return await node_answer(request)

        api.server.answer = answer
        calls = (await asyncio.to_thread(registered, kubelet, SHARED)).calls
        share = ids(kubelet, SHARED)[0]
        assert calls is not None
        calls.allocate([share])
        kubelet.pod_resources = held({"team/train": {"main": {SHARED: [share]}}})
        await asyncio.to_thread(agent.wait, lambda: agent.gpu(0).get("held") == 1, "held")
        await _until(lambda: api.applied, "the cluster is there", agent)
        here.write_policy(
            native("{select: {index: 0}, exclusive: {}, change: drain}", four.replace("all", "rest"))
        )
        said = "not evicted: pod team/train has no controller that would make it again"
        await asyncio.to_thread(agent.wait, lambda: said in (agent.gpu(0).get("reason") or ""), "said")
        assert (await asyncio.to_thread(agent.gpu, 0))["phase"] == "waiting"
        await _until(
            lambda: any(one["reason"] == "DrainSkipped" for one in api.events), "told on the pod", agent
        )

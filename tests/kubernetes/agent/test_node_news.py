"""Conditions, events and the pending plan of the own Node, against an API server on real sockets."""

import asyncio
import json

from partage.plan.cluster.conditions import PLAN
from tests.agent.harness import ids, native, registered
from tests.agent.test_cluster import _agent, _until
from tests.edges.kube.scripted import status
from tests.kubelet_script import held

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
FOUR_EACH = native("{select: all, time-slicing: {replicas: 4}}")


async def test_a_node_has_conditions_and_a_refused_policy_is_an_event():
    async with _agent(policy=FOUR_EACH) as (here, api, agent):
        await _until(lambda: len(api.conditions) == 3, "conditions", agent)
        assert {row["status"] for row in api.conditions.values()} == {"True"}
        assert PLAN not in api.annotations
        here.write_policy(native("{select: {index: [9]}, exclusive: {}}"))
        await _until(lambda: api.conditions["PartagePolicyInForce"]["status"] == "False", "refused", agent)
        [event] = api.events
        assert (event["reason"], event["type"]) == ("PolicyRefused", "Warning")
        assert (event["regarding"]["kind"], event["regarding"]["uid"]) == ("Node", "u1")
        assert api.conditions["PartagePolicyInForce"]["reason"] == "DoesNotFit"


async def test_a_node_says_which_gpu_waits_for_which_pod_until_it_has_changed():
    async with _agent(policy=native(), kubelet=True) as (here, api, agent, kubelet):
        calls = (await asyncio.to_thread(registered, kubelet, GPU)).calls
        first = ids(kubelet, GPU)[0]
        assert calls is not None
        calls.allocate([first])
        kubelet.pod_resources = held({"team/train": {"main": {GPU: [first]}}})
        row = {"PodUID": "uid-7", "ContainerName": "main", "ResourceName": GPU, "DeviceIDs": {"0": [first]}}
        checkpoint = {"Data": {"PodDeviceEntries": [row], "RegisteredDevices": {}}, "Checksum": 0}
        (here.kubelet_dir / "kubelet_internal_checkpoint").write_text(json.dumps(checkpoint))
        await asyncio.to_thread(agent.wait, lambda: agent.gpu(0).get("held") == 1, "held")
        here.write_policy(FOUR_EACH)
        await _until(lambda: "team/train" in api.annotations.get(PLAN, ""), "the plan", agent)
        gpu, *_ = json.loads(api.annotations[PLAN])["gpus"]
        assert (gpu["index"], gpu["phase"], gpu["pods"]) == (0, "waiting", ["team/train"])
        assert gpu["since"].endswith("Z")
        awaited = {"ChangeWaits", "ChangeWaitsForPod"}
        await _until(lambda: awaited <= {event["reason"] for event in api.events}, "events", agent)
        told = {(event["reason"], event["regarding"]["kind"]): event for event in api.events}
        assert told["ChangeWaits", "Node"]["note"] == "GPU 0 waits for pod team/train"
        on_pod = told["ChangeWaitsForPod", "Pod"]
        assert (on_pod["regarding"]["name"], on_pod["metadata"]["namespace"]) == ("train", "team")
        assert on_pod["regarding"]["uid"] == "uid-7", "of the kubelet's checkpoint"
        kubelet.pod_resources = held({})
        await _until(lambda: PLAN not in api.annotations, "settled", agent)
        await _until(lambda: api.events[-1]["reason"] == "ChangeDone", "told", agent)
        assert api.labels["nvidia.com/gpu.replicas"] == "4"


async def test_a_condition_that_is_gone_is_written_again():
    async with _agent() as (_, api, agent):
        await _until(lambda: len(api.conditions) == 3, "conditions", agent)
        await _until(lambda: api.watched, "a watch", agent)
        del api.conditions["PartageReady"]
        await api.edit(other="1")
        await _until(lambda: "PartageReady" in api.conditions, "again", agent)


async def test_an_account_that_may_not_write_conditions_is_told():
    async with _agent(refuse_status=status(403, "Forbidden", "cannot patch nodes/status")) as (_, api, agent):
        await asyncio.to_thread(agent.wait, lambda: "node-not-updated" in agent.degraded(), "told")
        await _until(lambda: api.applied, "labels come nevertheless", agent)

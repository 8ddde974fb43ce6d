"""An agent that shares GPUs by amounts of memory: on the kubelet's sockets, and what the cluster sees."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import grpc
import pytest

from partage.cli.main import run
from partage.model.ids import ShareId, device_of
from partage.plan.cluster.gpu_memory import GPU_MEMORY
from tests.agent.harness import healthy, ids, native, registered
from tests.agent.hosted import hosted
from tests.agent.test_cluster import _agent, _kubeconfig
from tests.kubelet_script import held, until, wait_for

MEMORY = "aliyun.com/gpu-mem"
BY_MEMORY = native("{select: all, mps: {unit: 1Gi}}")
MACHINE = "2xa100-80gb"


def free_cards(kubelet, taken):
    """How many units of each GPU the kubelet can give out, most first."""
    cards = Counter(device_of(ShareId(one)) for one in healthy(kubelet, MEMORY) if one not in taken)
    return sorted(cards.values(), reverse=True)


def test_amounts_over_the_kubelets_sockets(node, kubelet, capsys):
    with hosted(node, policy=BY_MEMORY, machine=MACHINE) as agent:
        calls = registered(kubelet, MEMORY).calls
        assert calls is not None
        wait_for(lambda: len(healthy(kubelet, MEMORY)) == 158, what="79 units of each")
        every = ids(kubelet, MEMORY)
        first = calls.preferred(every, [], 40)
        envs = calls.allocate(first).envs
        assert (envs["ALIYUN_COM_GPU_MEM_IDX"], envs["ALIYUN_COM_GPU_MEM_CONTAINER"]) == ("0", "40")
        second = calls.preferred([one for one in every if one not in first], [], 50)
        assert calls.allocate(second).envs["ALIYUN_COM_GPU_MEM_IDX"] == "1"
        pods = {"a/train": {"main": {MEMORY: first}}, "a/serve": {"main": {MEMORY: second}}}
        kubelet.pod_resources = held(pods)
        agent.wait(lambda: agent.gpu(1).get("held") == 50, "both are held")
        taken = {*first, *second}
        assert free_cards(kubelet, taken) == [39, 29]
        with pytest.raises(grpc.RpcError, match=r"GPU 0: 39 GiB, GPU 1: 29 GiB"):
            calls.preferred([one for one in every if one not in taken], [], 60)
        wait_for(lambda: free_cards(kubelet, taken) == [39], what="one GPU is listed")
        assert taken <= set(healthy(kubelet, MEMORY)), "who holds memory keeps it"
        assert len(ids(kubelet, MEMORY)) == 158

        capsys.readouterr()
        node.in_report_file('"pod":"train"')
        node.in_report_file('"pod":"serve"')
        assert run(["inspect", "-d", f"--machine={MACHINE}", f"--run-dir={node.run_dir}"]) == 0
        said = capsys.readouterr().out
        assert "train  a          40               0" in said
        assert "serve  a          0                50" in said
        assert "90/158 (56%)" in said
        metrics = agent.get("/metrics")[1].decode()
        assert "partage_share_holder{" not in metrics, "none for each unit: a node has thousands of them"
        assert 'namespace="a",pod="serve"} 50.0' in metrics, "partage_container_shares"

        kubelet.pod_resources = held({"a/serve": pods["a/serve"]})
        wait_for(lambda: free_cards(kubelet, second) == [79, 29], what="60 would fit again")


def test_a_kubelet_that_chooses_of_several_gpus_is_refused_and_left_one(node, kubelet):
    with hosted(node, policy=BY_MEMORY, machine=MACHINE):
        calls = registered(kubelet, MEMORY).calls
        assert calls is not None
        wait_for(lambda: len(healthy(kubelet, MEMORY)) == 158, what="79 units of each")
        every = ids(kubelet, MEMORY)
        with pytest.raises(
            grpc.RpcError, match="2 GiB of GPU 0, 2 GiB of GPU 1: a container's memory has to be"
        ):
            calls.allocate([*every[:2], *every[-2:]])
        wait_for(lambda: free_cards(kubelet, ()) == [79], what="one GPU is listed")
        assert calls.allocate(healthy(kubelet, MEMORY)[:3]).envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"


def test_an_init_container_that_asks_for_less_costs_one_pod(node, kubelet):
    """It binds its pod to a GPU where the rest may not be free, as it would the next pod."""
    with hosted(node, policy=BY_MEMORY, machine=MACHINE):
        calls = registered(kubelet, MEMORY).calls
        assert calls is not None
        wait_for(lambda: len(healthy(kubelet, MEMORY)) == 158, what="79 units of each")
        every = ids(kubelet, MEMORY)
        calls.allocate(every[:70])
        kubelet.pod_resources = held({"a/train": {"main": {MEMORY: every[:70]}}})
        init = calls.preferred(every[70:], [], 3)
        assert {device_of(ShareId(one)) for one in init} == {device_of(ShareId(every[0]))}, "the best fit"
        calls.allocate(init)
        with pytest.raises(grpc.RpcError, match="an init container of its pod had 3 GiB of GPU 0"):
            calls.preferred(every[70:], init, 15)
        wait_for(
            lambda: free_cards(kubelet, every[:70]) == [79], what="only GPU 1 is offered to the next one"
        )


async def test_the_node_says_how_much_is_held_and_of_how_many_gpus(capsys):
    async with _agent(policy=BY_MEMORY, kubelet=True) as (here, api, _, kubelet):
        calls = (await asyncio.to_thread(registered, kubelet, MEMORY)).calls
        assert calls is not None
        await until(lambda: len(healthy(kubelet, MEMORY)) == 4 * 79, what="four GPUs")
        mine = ids(kubelet, MEMORY)[:3]
        await asyncio.to_thread(calls.allocate, mine)
        kubelet.pod_resources = held({"a/train": {"main": {MEMORY: mine}}})
        await until(lambda: "train" in api.annotations.get(GPU_MEMORY, ""), what="the annotation")
        await until(lambda: api.capacity == {"aliyun.com/gpu-count": "4"}, what="the count")
        await until(lambda: "train" in api.pods, what="the pod's annotations")
        assert api.pods["train"] == {
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "80",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        }
        config = _kubeconfig(here.root, api.server.url)
        for words in (["n1"], ["--cluster"]):
            assert await asyncio.to_thread(run, ["inspect", *words, f"--kubeconfig={config}"]) == 0
            assert "n1    10.0.0.1   3/79" in capsys.readouterr().out
        api.capacity = {"aliyun.com/gpu-count": "0"}  # a restarted kubelet sets what it does not know to 0
        await api.edit(other="1")
        await until(lambda: api.capacity == {"aliyun.com/gpu-count": "4"}, what="counted again")
        kubelet.pod_resources = held({})
        here.write_policy(native())
        await until(lambda: api.capacity == {} and GPU_MEMORY not in api.annotations, what="exclusive")


async def test_labels_go_on_where_the_status_may_not_be_written():
    from tests.edges.kube.scripted import status

    refused = status(403, "Forbidden", "cannot patch it")
    async with _agent(policy=BY_MEMORY, kubelet=True, refuse_status=refused) as (
        _,
        api,
        _agent_process,
        kubelet,
    ):
        api.refuse_pods = refused
        calls = (await asyncio.to_thread(registered, kubelet, MEMORY)).calls
        assert calls is not None
        await until(lambda: len(healthy(kubelet, MEMORY)) == 4 * 79, what="four GPUs")
        for name, mine in (("one", ids(kubelet, MEMORY)[:1]), ("two", ids(kubelet, MEMORY)[1:3])):
            await asyncio.to_thread(calls.allocate, mine)
            kubelet.pod_resources = held({f"a/{name}": {"main": {MEMORY: mine}}})
            await until(lambda: name in api.annotations.get(GPU_MEMORY, ""), what="the annotation")  # noqa: B023
        assert set(api.pods) == {"one"}, "one refusal is enough"
        assert json.loads(api.annotations[GPU_MEMORY])["cards"][0]["total"] == 79
        assert api.capacity == {}

"""Scenarios 1 to 4: from the ids that the kubelet chooses to the container that has them.

Other systems keep their own note of who gets which GPU beside the kubelet's, and the two differ when pods are
equal, come at once, or end early. Partage takes the kubelet's ids for the decision.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from partage.model.pod import Container, Pod
from partage.sim.kubelet.kubelet import EmbeddedKubelet
from partage.sim.kubelet.pods import ContainerStatus
from partage.sim.node.faults import Reboot
from tests.agent.harness import (
    Agent,
    Place,
    SimulatedHelper,
    ids,
    native,
    offered,
    registered,
    running,
    spawn,
)
from tests.agent.hosted import hosted
from tests.kubelet_script import PluginCalls, ScriptedKubelet, held, until

FOUR = "4xh100-sxm5-80gb"
SHARED = "nvidia.com/gpu.shared"
THIRDS = native("{select: all, time-slicing: {replicas: 3}}")
HALVES = native("{select: all, time-slicing: {replicas: 2}}")


def calls_of(kubelet: ScriptedKubelet, resource: str = SHARED) -> PluginCalls:
    """The calls to the plugin that serves the resource now."""
    calls = registered(kubelet, resource).calls
    assert calls is not None
    return calls


def pods(given: Mapping[str, Iterable[str]]) -> Any:
    """What PodResources answers of pods with one container each."""
    return held({f"default/{pod}": {"main": {SHARED: some}} for pod, some in given.items()})


def ledger(agent: Agent) -> dict[str, dict[str, set[str]]]:
    """Pod to container to its ids, as the agent reports them."""
    found: dict[str, dict[str, set[str]]] = {}
    for row in agent.report()["held"]:
        for holder in row["holders"]:
            found.setdefault(holder["pod"], {}).setdefault(holder["container"], set()).add(row["id"])
    return found


def certainties(agent: Agent) -> set[str]:
    return {row["certainty"] for row in agent.report()["held"]}


@pytest.mark.parametrize("seed", range(3))
def test_scenario_01_ten_equal_pods_at_once_each_have_what_the_ledger_says(
    node: Place, kubelet: ScriptedKubelet, seed: int
) -> None:
    """The kubelet follows the preference or not, and calls for all pods at once, in any order."""
    random = Random(seed)
    names = [f"pod-{number}" for number in range(10)]
    with hosted(node, machine=FOUR, policy=THIRDS) as agent:
        offered(kubelet, SHARED, 12)
        calls = calls_of(kubelet)
        free = ids(kubelet, SHARED)
        given: dict[str, str] = {}
        for name in random.sample(names, len(names)):
            (preferred,) = calls.preferred(free, [], 1)
            given[name] = preferred if random.random() < 0.5 else random.choice(free)
            free.remove(given[name])
        with ThreadPoolExecutor(len(names)) as at_once:
            order = random.sample(names, len(names))
            answers = dict(
                zip(order, at_once.map(lambda name: calls.allocate([given[name]]), order), strict=True)
            )
            kubelet.pod_resources = pods({name: [given[name]] for name in random.sample(names, len(names))})
            for _ in at_once.map(lambda name: calls.pre_start([given[name]]), random.sample(names, 10)):
                pass
        assert {name: answer.envs["PARTAGE_SHARES"] for name, answer in answers.items()} == given
        for name, answer in answers.items():
            assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == given[name].partition("::")[0]
        expected = {name: {"main": {share}} for name, share in given.items()}
        agent.wait(lambda: ledger(agent) == expected, "the ledger is what the pods have")
        agent.wait(lambda: certainties(agent) == {"proven"}, "and that is proven")


# --- 2: who is killed between Allocate and the start of the container ------------------------------


def test_scenario_02_the_agent_is_killed_between_allocate_and_the_start(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """The next agent, with another policy, lets the container start and leaves its GPU as it is."""
    with running(spawn(node, machine=FOUR, policy=THIRDS)) as agent:
        offered(kubelet, SHARED, 12)
        share = ids(kubelet, SHARED)[4]
        calls_of(kubelet).allocate([share])
        agent.kill()
    kubelet.pod_resources = pods({"train": [share]})
    kubelet.registered.clear()
    with running(spawn(node, machine=FOUR, policy=HALVES)) as agent:
        agent.wait(lambda: len(ids(kubelet, SHARED)) == 7, "three GPUs in halves, and the share that is held")
        calls_of(kubelet).pre_start([share])
        agent.wait(lambda: certainties(agent) == {"proven"}, "proven")
        assert ledger(agent) == {"train": {"main": {share}}}
        assert agent.gpu(1)["phase"] == "waiting"
        kubelet.pod_resources = held({})
        offered(kubelet, SHARED, 8)


def test_scenario_02_the_kubelet_restarts_and_does_not_know_its_pods_at_first(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, machine=FOUR, policy=THIRDS) as agent:
        offered(kubelet, SHARED, 12)
        share = ids(kubelet, SHARED)[4]
        calls_of(kubelet).allocate([share])
        kubelet.pod_resources = pods({"train": [share]})
        agent.wait(lambda: ledger(agent) == {"train": {"main": {share}}}, "the ledger names it")

        kubelet.registered.clear()
        kubelet.pod_resources = held({})
        kubelet.restart()
        offered(kubelet, SHARED, 12)
        asked = kubelet.list_calls
        node.write_policy(HALVES)
        agent.wait(lambda: agent.gpu(1)["phase"] == "waiting" and kubelet.list_calls > asked + 1, "it waits")
        assert share in ids(kubelet, SHARED)
        kubelet.pod_resources = pods({"train": [share]})
        agent.wait(lambda: ledger(agent) == {"train": {"main": {share}}}, "named again")
        calls_of(kubelet).pre_start([share])
        agent.wait(lambda: certainties(agent) == {"proven"}, "proven")


def test_scenario_02_after_a_reboot_the_pod_starts_again_with_its_share(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    """The state directory is kept and /run is empty; the kubelet does not call Allocate again."""
    policy = native("{select: {index: [0, 1]}, mps: {replicas: 2}}")
    with running(spawn(node, machine=None, policy=policy)) as agent:
        offered(kubelet, SHARED, 4)
        share = ids(kubelet, SHARED)[2]
        calls_of(kubelet).allocate([share])
        kubelet.pod_resources = pods({"train": [share]})
        agent.wait(lambda: ledger(agent) == {"train": {"main": {share}}}, "the ledger names it")
        agent.kill()
    kubelet.stop()
    shutil.rmtree(node.run_dir)
    helper.inject(Reboot())
    kubelet.registered.clear()
    kubelet.wipe()
    kubelet.start()
    with running(spawn(node, machine=None, policy=policy)) as agent:
        offered(kubelet, SHARED, 4)
        calls_of(kubelet).pre_start([share])
        agent.wait(lambda: ledger(agent) == {"train": {"main": {share}}}, "the ledger names it again")
        assert agent.gpu(1)["mpsDaemons"][0]["state"] == "serving"


# --- 3: pods of several containers ------------------------------------------------------------------

MIXED = native(
    "{select: {index: [0]}, time-slicing: {replicas: 4}}",
    "{select: {index: [1]}, mps: {clients: [{name: big, memory: 40Gi}, {name: small, memory: 16Gi}]}}",
    "{select: {index: [2]}, mig: {layout: [3g.40gb, 1g.10gb]}}",
)
MIXED += "resources: {fail-requests-greater-than-one: false}\n"
BIG, SMALL_MIG = "nvidia.com/gpu.big", "nvidia.com/mig-1g.10gb"


async def test_scenario_03_two_gpu_containers_a_sidecar_and_an_init_container_of_different_sizes(
    node: Place,
) -> None:
    """The init container's shares are the main container's afterwards, and count once."""
    pod = Pod(
        "default",
        "several",
        (
            Container("prepare", {SHARED: 3}, "init"),
            Container("sidecar", {SMALL_MIG: 1}, "sidecar"),
            Container("main", {SHARED: 2}),
            Container("second", {BIG: 1}),
            Container("plain"),
        ),
    )
    kubelet = EmbeddedKubelet(node.kubelet_dir, node.pod_resources)
    await kubelet.start()
    try:
        with hosted(node, machine=FOUR, policy=MIXED) as agent:
            everything = {SHARED: 4, BIG: 1, SMALL_MIG: 1, "nvidia.com/gpu": 1}
            await until(lambda: everything.items() <= kubelet.allocatable().items(), what="all is offered")
            status = await kubelet.admit(pod)
            assert not status.message
            for one in status.containers:
                told = [text for key, text in one.env.items() if key == "PARTAGE_SHARES"]
                assert {share for text in told for share in text.split(",")} == _shares(one), one.name
            has = {one.name: _shares(one) for one in status.containers}
            assert has["main"] < has["prepare"], "two of the three are used again"
            named = {name: has[name] for name in ("main", "second", "sidecar")}
            await asyncio.to_thread(agent.wait, lambda: ledger(agent) == {"several": named}, "the ledger")
            assert not kubelet.protocol_errors
            await kubelet.delete(pod)
            await asyncio.to_thread(agent.wait, lambda: not ledger(agent), "all is free again", 20)
    finally:
        await kubelet.stop()


def _shares(container: ContainerStatus) -> set[str]:
    """By the kubelet's books."""
    return {share for some in container.ids.values() for share in some}


# --- 4: a pod that ends before it began ------------------------------------------------------------


def test_scenario_04_a_pod_that_is_deleted_before_allocate_keeps_nothing_from_the_next(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """Partage reserves nothing before Allocate, and takes no lock that a deleted pod could leave behind."""
    with hosted(node, machine=FOUR, policy=THIRDS) as agent:
        offered(kubelet, SHARED, 12)
        calls = calls_of(kubelet)
        every = ids(kubelet, SHARED)
        (first,) = calls.preferred(every, [], 1)  # its pod is deleted now
        assert agent.report()["held"] == []
        assert calls.preferred(every, [], 1) == [first]

        calls.allocate([first])  # and this one's after Allocate: PodResources never names it
        assert calls.allocate([first]).envs["PARTAGE_SHARES"] == first
        for share in [one for one in every if one != first]:
            calls.allocate([share])
        kubelet.pod_resources = pods({f"pod-{number}": [share] for number, share in enumerate(every)})
        agent.wait(lambda: len(ledger(agent)) == 12, "twelve pods, and no trace of the two")

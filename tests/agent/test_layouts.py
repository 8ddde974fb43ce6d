"""The agent makes MIG layouts: a real process, a real helper, a kubelet that watches every message."""

from __future__ import annotations

from partage.errors import InsufficientResources
from partage.model.gpu_use import UseKind
from partage.sim.node.faults import FailCall, LoseGpu, Occupy, Vacate
from tests.agent.harness import (
    Agent,
    Place,
    SimulatedHelper,
    healthy,
    ids,
    native,
    offered,
    registered,
    running,
    simulated_helper,
    spawn,
)
from tests.agent.hosted import hosted
from tests.kubelet_script import ScriptedKubelet, held, wait_for

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
SMALL = "nvidia.com/mig-1g.10gb"
MIDDLE = "nvidia.com/mig-2g.20gb"
LARGE = "nvidia.com/mig-3g.40gb"
OTHERS = [
    "{select: {index: [0, 1, 3]}, exclusive: {}}",
    "{select: {index: [4, 5]}, time-slicing: {replicas: 2}}",
    "{select: {index: [6, 7]}, mig: {layout: [2g.20gb, 2g.20gb, 2g.20gb]}}",
]


def with_layout(*profiles: str) -> str:
    return native(*OTHERS, f"{{select: {{index: [2]}}, mig: {{layout: [{', '.join(profiles)}]}}}}")


def made(agent: Agent, ending: str = "done") -> int:
    return int(agent.metric(f'partage_gpu_changes_total{{ending="{ending}"}}') or 0)


def lists(kubelet: ScriptedKubelet, resource: str) -> list[dict[str, str]]:
    """Every message about a resource since it was registered, as ids and health."""
    watch = registered(kubelet, resource).watch
    assert watch is not None
    return [{row.ID: row.health for row in message.devices} for message in watch.lists]


def allocate(kubelet: ScriptedKubelet, resource: str, share: str) -> None:
    calls = registered(kubelet, resource).calls
    assert calls is not None
    calls.allocate([share])


def test_a_layout_that_does_not_live_yet_is_made_and_then_offered(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, policy=with_layout("3g.40gb", "1g.10gb", "1g.10gb")) as agent:
        offered(kubelet, LARGE, 1)
        offered(kubelet, SMALL, 2)
        offered(kubelet, MIDDLE, 6)
        assert len(healthy(kubelet, GPU)) == 3
        agent.wait(lambda: made(agent) == 3, "three layouts made")
        assert agent.gpu(2)["strategy"] == agent.gpu(2)["wantedStrategy"] == "mig"


def test_scenario_14_a_layout_changes_and_nobody_else_hears_a_word(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """Eight GPUs: the layout of one is changed while the other seven hold pods."""
    with hosted(node, policy=with_layout("3g.40gb", "1g.10gb", "1g.10gb")) as agent:
        for resource, count in ((LARGE, 1), (SMALL, 2), (MIDDLE, 6), (GPU, 3), (SHARED, 4)):
            offered(kubelet, resource, count)
        pods = {GPU: ids(kubelet, GPU), SHARED: ids(kubelet, SHARED)[::2], MIDDLE: ids(kubelet, MIDDLE)}
        for resource, shares in pods.items():
            for share in shares:
                allocate(kubelet, resource, share)
        kubelet.pod_resources = held(
            {
                f"default/{resource.rpartition('/')[2]}-{number}": {"main": {resource: [share]}}
                for resource, shares in pods.items()
                for number, share in enumerate(shares)
            }
        )
        agent.wait(lambda: all(row["holders"] for row in agent.report()["held"]), "all holders known")
        registrations = len(kubelet.registered)
        before = {name: lists(kubelet, name) for name in (GPU, SHARED, MIDDLE)}
        node.write_policy(with_layout("1g.10gb", *["2g.20gb"] * 2, "1g.10gb"))
        agent.wait(lambda: made(agent) == 4, "the layout of GPU 2 made")
        offered(kubelet, MIDDLE, 8)
        wait_for(lambda: not ids(kubelet, LARGE), what="the old profile gone")

        assert len(kubelet.registered) == registrations, "something registered again"
        assert not any(one.watch.ended.is_set() for one in kubelet.registered if one.watch)
        for name in (GPU, SHARED):
            assert lists(kubelet, name) == before[name], f"{name} was told something"
        theirs = before[MIDDLE][-1]
        for message in lists(kubelet, MIDDLE)[len(before[MIDDLE]) - 1 :]:
            assert theirs.items() <= message.items(), "an id or its health changed that is not of GPU 2"


def test_devices_that_fit_the_new_layout_stay_offered_throughout(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    only = "{{select: {{index: [0]}}, mig: {{layout: [{}]}}}}"
    policy = native(only.format("3g.40gb, 1g.10gb, 1g.10gb"))
    with hosted(node, policy=policy) as agent:
        offered(kubelet, LARGE, 1)
        offered(kubelet, SMALL, 2)
        large, small = ids(kubelet, LARGE), ids(kubelet, SMALL)
        node.write_policy(native(only.format("3g.40gb, 1g.10gb, 2g.20gb")))
        offered(kubelet, MIDDLE, 1)
        agent.wait(lambda: made(agent) == 2, "two layouts made")
        assert all(list(message) == large for message in lists(kubelet, LARGE))
        (kept,) = healthy(kubelet, SMALL)
        assert kept in small
        assert all(kept in message for message in lists(kubelet, SMALL))


def test_a_layout_waits_for_the_pod_that_is_in_its_way(node: Place, kubelet: ScriptedKubelet) -> None:
    only = "{{select: {{index: [0]}}, mig: {{layout: [{}]}}}}"
    with hosted(node, policy=native(only.format("3g.40gb, 3g.40gb"))) as agent:
        offered(kubelet, LARGE, 2)
        mine, _ = ids(kubelet, LARGE)
        allocate(kubelet, LARGE, mine)
        kubelet.pod_resources = held({"default/train": {"main": {LARGE: [mine]}}})
        node.write_policy(native(only.format("2g.20gb, 2g.20gb, 2g.20gb")))
        wait_for(lambda: ids(kubelet, LARGE) == [mine], what="the free device withdrawn, the held one not")
        agent.wait(lambda: "default/train" in (agent.gpu(0)["reason"] or ""), "the pod in its way named")
        assert made(agent) == 1, "what is in use was touched"
        kubelet.pod_resources = held({})
        offered(kubelet, MIDDLE, 3)
        assert made(agent) == 2


def test_a_process_that_is_no_pod_is_waited_for_and_named(
    node: Place, helper: SimulatedHelper, kubelet: ScriptedKubelet
) -> None:
    only = "{{select: {{index: [0]}}, mig: {{layout: [{}]}}}}"
    with hosted(node, machine=None, policy=native(only.format("7g.80gb"))) as agent:
        offered(kubelet, "nvidia.com/mig-7g.80gb", 1)
        helper.inject(Occupy(0, "python3", UseKind.PROCESS, pid=4711))
        node.write_policy(native(only.format("1g.10gb")))
        agent.wait(lambda: "python3 (pid 4711)" in (agent.gpu(0)["reason"] or ""), "the process named")
        assert made(agent) == 1
        helper.inject(Vacate(0, "python3"))
        offered(kubelet, SMALL, 1)


def test_mig_mode_is_turned_off_where_the_policy_says_so(node: Place, kubelet: ScriptedKubelet) -> None:
    on = native("{select: {index: [0]}, mig: {layout: [7g.80gb]}}")
    off = "version: v1\nmig-configs:\n  off:\n    - {devices: all, mig-enabled: false}\n"
    with hosted(node, policy=on) as agent:
        offered(kubelet, "nvidia.com/mig-7g.80gb", 1)
        offered(kubelet, GPU, 7)
        node.write_policy(off)
        offered(kubelet, GPU, 8)
        agent.wait(lambda: agent.gpu(0)["strategy"] == "exclusive", "the whole GPU again")


def test_a_layout_that_the_hardware_refuses_is_taken_back_reported_and_tried_again(
    node: Place, helper: SimulatedHelper, kubelet: ScriptedKubelet
) -> None:
    only = "{{select: {{index: [0]}}, mig: {{layout: [{}]}}}}"
    with hosted(node, machine=None, policy=native(only.format("3g.40gb"))) as agent:
        offered(kubelet, LARGE, 1)
        helper.inject(FailCall("perform", InsufficientResources("no room, says the driver")))
        node.write_policy(native(only.format("1g.10gb")))
        agent.wait(lambda: "no room, says the driver" in (agent.gpu(0)["reason"] or ""), "the failure told")
        offered(kubelet, SMALL, 1)
        assert (made(agent), made(agent, "rolled-back")) == (2, 1)


def test_a_gpu_that_dies_while_its_layout_waits_is_unhealthy_and_the_others_go_on(
    node: Place, helper: SimulatedHelper, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, machine=None, policy=with_layout("3g.40gb", "3g.40gb")) as agent:
        for resource, count in ((LARGE, 2), (MIDDLE, 6), (GPU, 3)):
            offered(kubelet, resource, count)
        mine, _ = ids(kubelet, LARGE)
        allocate(kubelet, LARGE, mine)
        kubelet.pod_resources = held({"default/train": {"main": {LARGE: [mine]}}})
        node.write_policy(with_layout("2g.20gb"))
        wait_for(lambda: ids(kubelet, LARGE) == [mine], what="the layout waits")
        helper.inject(LoseGpu(2))
        agent.wait(lambda: agent.gpu(2)["lost"], "the GPU lost")
        wait_for(lambda: not healthy(kubelet, LARGE), what="its device unhealthy")
        assert len(healthy(kubelet, GPU)) == 3
        assert len(healthy(kubelet, MIDDLE)) == 6


def test_killed_in_the_middle_the_next_agent_goes_on(node: Place, kubelet: ScriptedKubelet) -> None:
    policy = native(f"{{select: all, mig: {{layout: [{', '.join(['1g.10gb'] * 7)}]}}}}")
    with simulated_helper(node):
        with running(spawn(node, machine=None, policy=policy)) as agent:
            agent.wait(lambda: "step: doing" in "".join(agent.log), "it has begun")
            agent.kill()
        with running(spawn(node, machine=None, policy=policy)) as agent:
            offered(kubelet, SMALL, 56)
            agent.wait(lambda: not any(gpu["reason"] for gpu in agent.report()["gpus"]), "nothing left to do")

"""A pod that is deleted by force leaves a process behind: nobody gets its share, its GPU does not change."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest

from partage.cli.main import run
from partage.edges.kubelet.checkpoint import CHECKPOINT
from partage.errors import NotPermitted
from partage.model.ids import ContainerId, PodUid
from partage.sim.node.faults import FailCall, HangCall, HealCall, HideProcesses, Occupy, Vacate
from tests.agent.harness import MACHINE, Agent, healthy, ids, native, registered
from tests.agent.hosted import hosted
from tests.kubelet_script import PluginCalls, held, wait_for

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
WHOLE = native("{select: all, exclusive: {}}")
HALF = native("{select: all, time-slicing: {replicas: 2}}")
FORMER, NEXT = PodUid("0aa9e3a1-0000-4000-8000-000000000001"), PodUid("0aa9e3a1-0000-4000-8000-000000000002")
LEFT = Occupy(0, "train", pid=4711, pod=FORMER, container=ContainerId("c" * 64))


def books(directory: Path, **pods: Iterable[str]) -> None:
    """The kubelet writes its checkpoint: the ids that each pod holds. None is there at a start."""
    entries = [
        {"PodUID": uid, "ContainerName": "main", "ResourceName": GPU, "DeviceIDs": {"-1": list(shares)}}
        for uid, shares in pods.items()
    ]
    beside = directory / "checkpoint.new"
    beside.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}}))
    beside.replace(directory / CHECKPOINT)


@pytest.fixture
def agent(node, kubelet, helper):
    """On it, a pod holds GPU 0, and one process of it has the GPU open."""
    books(node.kubelet_dir)
    with hosted(node, machine=None, policy=WHOLE) as one:
        share = first(kubelet)
        calls(kubelet).allocate([share])
        books(node.kubelet_dir, **{FORMER: [share]})
        kubelet.pod_resources = held({"a/train": {"main": {GPU: [share]}}})
        helper.inject(LEFT)
        one.wait(lambda: [row["certainty"] for row in one.report()["held"]] == ["observed"], "held")
        yield one


def calls(kubelet) -> PluginCalls:
    found = registered(kubelet, GPU).calls
    assert found is not None
    return found


def first(kubelet) -> str:
    registered(kubelet, GPU)
    return ids(kubelet, GPU)[0]


def entry(agent: Agent) -> dict[str, Any]:
    return next(iter(agent.report()["held"]), {})


def forget(node, kubelet) -> None:
    """The pod is deleted by force."""
    kubelet.pod_resources = held({})
    books(node.kubelet_dir)


def test_the_next_pod_is_refused_at_once_and_no_other_is_tried(node, kubelet, helper, agent) -> None:
    share = first(kubelet)
    forget(node, kubelet)
    with pytest.raises(grpc.RpcError) as refused:
        calls(kubelet).allocate([share])
    assert "process train (pid 4711)" in str(refused.value)
    assert f"partage free {share}" in str(refused.value)
    wait_for(lambda: share not in healthy(kubelet, GPU), what="unhealthy with the refusal", limit_s=1)
    assert len(healthy(kubelet, GPU)) == 7
    agent.wait(lambda: entry(agent).get("left"), "reported")
    row = entry(agent)
    assert row["certainty"] == "ending"
    assert row["left"] == [{"pod": FORMER, "container": "c" * 64, "pid": 4711, "name": "train"}]
    assert row["endedAt"] > row["since"]
    assert agent.degraded() == ["process-left"]
    assert agent.health() == (200, [])
    helper.inject(Vacate(0))
    wait_for(lambda: len(healthy(kubelet, GPU)) == 8, what="free when the process has ended")
    assert calls(kubelet).allocate([share]).envs["PARTAGE_STRATEGY"] == "exclusive"


def test_a_gpu_does_not_change_while_a_process_of_a_forgotten_pod_runs(
    node, kubelet, helper, agent, capsys
) -> None:
    share = first(kubelet)
    forget(node, kubelet)
    agent.wait(lambda: entry(agent).get("left"), "seen by the look that follows PodResources", limit_s=20)
    node.write_policy(HALF)
    wait_for(lambda: len(healthy(kubelet, SHARED)) == 14, what="the other GPUs changed")
    assert agent.gpu(0)["phase"] == "waiting"
    assert (
        "process train (pid 4711) of pods that the kubelet has forgotten still runs" in agent.gpu(0)["reason"]
    )
    assert agent.gpu(0)["waitingFor"][0]["id"] == share
    assert agent.gpu(0)["processes"] == ["process train (pid 4711)"]
    node.in_report_file('"phase":"waiting"')
    for verb in (["show"], ["plan", f"--policy={node.policy}"]):
        assert run([*verb, f"--machine={MACHINE}", f"--run-dir={node.run_dir}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "GPU 0 changes to time-slicing when process train (pid 4711) of a/train has ended" in shown
    assert "waiting for process train (pid 4711)" in " ".join(shown.replace("│", " ").split())
    assert "waits for a/train" not in shown, "the pod has gone"
    helper.inject(Vacate(0))
    wait_for(lambda: len(healthy(kubelet, SHARED)) == 16, what="it changes, too")


def test_a_person_frees_the_share_and_is_warned(node, kubelet, helper, agent, capsys) -> None:
    share = first(kubelet)
    where = [f"--machine={MACHINE}", f"--run-dir={node.run_dir}"]
    node.in_report_file('"certainty":"observed"')
    assert run(["free", share, *where]) == 2
    assert "no process is waited for" in capsys.readouterr().err
    helper.inject(Occupy(0, "loader", pid=4712, pod=FORMER, container=LEFT.container))
    forget(node, kubelet)
    agent.wait(lambda: len(entry(agent).get("left") or ()) == 2, "waited for", limit_s=20)
    node.in_report_file('"pid":4712')
    assert run(["show", *where]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    both = "process train (pid 4711), process loader (pid 4712)"
    assert f"{both} of it still run; if it cannot end: partage free" in shown
    assert run(["free", share, *where]) == 0
    said = capsys.readouterr()
    assert said.out == f"freed: {share}\n"
    assert f"warning: {both} go on beside the next container" in said.err
    wait_for(lambda: len(healthy(kubelet, GPU)) == 8, what="freed")
    assert calls(kubelet).allocate([share]).envs


def test_a_helper_that_answers_with_errors_is_named_and_a_person_need_not_wait_for_it(
    node, kubelet, helper, agent, capsys
) -> None:
    share = first(kubelet)
    where = [f"--machine={MACHINE}", f"--run-dir={node.run_dir}"]
    helper.inject(FailCall("left", NotPermitted("/proc/4711/status: permission denied"), times=None))
    forget(node, kubelet)
    node.write_policy(HALF)
    agent.wait(lambda: entry(agent).get("unseen"), "it is said", limit_s=20)
    assert entry(agent)["formerPods"] == [FORMER]
    assert agent.degraded() == ["process-unknown"]
    agent.wait(lambda: "permission denied" in agent.gpu(0)["reason"], "the GPU says why it waits")
    assert agent.gpu(0)["phase"] == "waiting"
    node.in_report_file("process-unknown")
    assert run(["show", *where]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "nobody could look whether a process of it still runs: /proc/4711/status" in shown
    assert run(["explain", "share", share, *where]) == 0
    assert "nobody can look since" in " ".join(capsys.readouterr().out.split())
    assert run(["free", share, *where]) == 0
    assert "warning: a process that nobody has looked for goes on" in capsys.readouterr().err
    wait_for(lambda: len(healthy(kubelet, SHARED)) == 16, what="it changes")


def test_without_an_answer_in_time_the_kubelets_word_counts(node, kubelet, helper, agent) -> None:
    share = first(kubelet)
    forget(node, kubelet)
    helper.inject(HangCall("left", times=None, seconds=0.3))
    assert calls(kubelet).allocate([share]).envs["PARTAGE_STRATEGY"] == "exclusive"
    helper.inject(HealCall("left"))
    books(node.kubelet_dir, **{NEXT: [share]})
    kubelet.pod_resources = held({"a/next": {"main": {GPU: [share]}}})
    agent.wait(lambda: [who["pod"] for who in entry(agent)["holders"]] == ["next"], "the next pod holds it")
    assert share in healthy(kubelet, GPU)
    forget(node, kubelet)
    agent.wait(lambda: entry(agent).get("left"), "the first one is still waited for", limit_s=20)
    wait_for(lambda: share not in healthy(kubelet, GPU), what="given to nobody")


def test_where_nobody_can_look_it_is_said_and_the_kubelets_word_decides(node, kubelet, helper) -> None:
    books(node.kubelet_dir)
    helper.inject(HideProcesses())
    with hosted(node, machine=None, policy=WHOLE) as agent:
        share = first(kubelet)
        agent.wait(lambda: agent.degraded() == ["processes-unseen"], "said")
        calls(kubelet).allocate([share])
        books(node.kubelet_dir, **{FORMER: [share]})
        kubelet.pod_resources = held({"a/train": {"main": {GPU: [share]}}})
        helper.inject(LEFT)
        agent.wait(lambda: entry(agent).get("certainty") == "observed", "held")
        forget(node, kubelet)
        assert calls(kubelet).allocate([share]).envs

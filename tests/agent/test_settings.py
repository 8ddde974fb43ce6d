"""The agent has GPUs set as their shares need it: MPS daemons, compute modes, time slices."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any

import pytest

from partage.errors import DriverUnavailable, Unsupported
from partage.model.gpu import ComputeMode
from partage.model.gpu_use import UseKind
from partage.model.mps import DaemonPhase, DaemonState
from partage.model.strategy import Interval
from partage.sim.node.faults import (
    FailCall,
    HealCall,
    LastClientLeaves,
    Occupy,
    Reboot,
    SetDaemonPhase,
    Vacate,
)
from tests.agent.harness import (
    MACHINE,
    REPOSITORY,
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
from tests.agent.hosted import HostedAgent, hosted
from tests.kubelet_script import LIMIT_S, ScriptedKubelet, held, wait_for

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
FOUR = "{select: {index: [0, 1, 2, 3]}, mps: {replicas: 4}}"
ONE = "{{select: {{index: [0]}}, {}}}"
PLAIN = native()


def agent_of(node: Place, *entries: str) -> AbstractContextManager[HostedAgent]:
    return hosted(node, machine=None, policy=native(*entries))


def asked(helper: SimulatedHelper, question: str) -> Any:
    """Ask the simulated driver, on its loop."""
    hardware = helper.hardware
    assert hardware is not None
    answer = getattr(hardware, question)()
    return asyncio.run_coroutine_threadsafe(answer, helper._loop).result(LIMIT_S)


def daemons(helper: SimulatedHelper) -> dict[int, DaemonState]:
    """By the index of their GPU."""
    index = {gpu.uuid: gpu.index for gpu in asked(helper, "observe").gpus}
    return {index[one.gpu]: one for one in asked(helper, "daemons")}


def modes(helper: SimulatedHelper) -> list[ComputeMode]:
    return [gpu.compute_mode for gpu in asked(helper, "observe").gpus]


def slices(helper: SimulatedHelper) -> list[Interval]:
    return [one.interval for one in asked(helper, "time_slices")]


def shown(node: Place) -> str:
    """What ``partage show`` says beside the agent, in one line."""
    command = [sys.executable, "-m", "partage", "show", f"--machine={MACHINE}", f"--run-dir={node.run_dir}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    return " ".join(answer.stdout.split())


def test_four_cards_of_eight_under_mps_have_four_daemons_and_a_fault_leaves_three_serving(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, FOUR) as agent:
        offered(kubelet, SHARED, 16)
        offered(kubelet, GPU, 4)
        assert {index: one.phase for index, one in daemons(helper).items()} == dict.fromkeys(
            range(4), DaemonPhase.SERVING
        )
        assert modes(helper) == [ComputeMode.EXCLUSIVE_PROCESS] * 4 + [ComputeMode.DEFAULT] * 4
        helper.inject(SetDaemonPhase(2, DaemonPhase.FAULT))
        offered(kubelet, SHARED, 12)
        assert len(ids(kubelet, SHARED)) == 16
        assert {index for index, one in daemons(helper).items() if one.phase is DaemonPhase.SERVING} == {
            0,
            1,
            3,
        }
        helper.inject(SetDaemonPhase(2, DaemonPhase.SERVING))
        offered(kubelet, SHARED, 16)
        assert len(healthy(kubelet, GPU)) == 4
        agent.wait(lambda: agent.health() == (200, []), "healthy")


def test_limits_are_those_of_the_shares(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, FOUR):
        offered(kubelet, SHARED, 16)
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        envs = calls.allocate([ids(kubelet, SHARED)[0]]).envs
        one = daemons(helper)[0]
        assert str(one.limits.memory_bytes) == envs["PARTAGE_MEMORY_BYTES"]
        assert one.limits.threads_percent == 25


SEVERAL = "{name: big, memory: 40Gi, threads: 60%}, {name: small, memory: 16Gi, threads: 20%}"


def test_unequal_clients_are_guarded_by_namespaces_where_the_driver_has_them(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    machine = node.root / "machine.json"
    gpu = {"name": "NVIDIA H100 80GB HBM3"}
    machine.write_text(
        json.dumps({"version": "partage/v1", "kind": "Machine", "driver": "615.71.09", "gpus": [gpu]}),
        encoding="utf-8",
    )
    with (
        simulated_helper(node, str(machine)) as helper,
        agent_of(node, ONE.format("mps: {replicas: 2}")),
    ):
        offered(kubelet, SHARED, 2)
        pid = daemons(helper)[0].pid
        node.write_policy(native(ONE.format(f"mps: {{protocol: 3, clients: [{SEVERAL}]}}")))
        offered(kubelet, "nvidia.com/gpu.big", 1)
        offered(kubelet, "nvidia.com/gpu.small", 1)
        assert [str(one) for one in daemons(helper)[0].limits.namespaces] == [
            "40 GiB and 60% of the SMs in share0",
            "16 GiB and 20% of the SMs in share1",
        ]
        calls = registered(kubelet, "nvidia.com/gpu.small").calls
        assert calls is not None
        answer = calls.allocate(ids(kubelet, "nvidia.com/gpu.small"))
        assert answer.envs["PARTAGE_GUARANTEE"] == "guarded"
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in answer.envs
        assert answer.mounts[0].host_path.endswith("/pipe/gpu/share1")
        assert daemons(helper)[0].pid != pid


def test_a_driver_that_has_no_namespaces_is_told_so_and_serves_as_before(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, ONE.format("mps: {replicas: 2}")) as agent:
        offered(kubelet, SHARED, 2)
        node.write_policy(native(ONE.format("mps: {replicas: 2, protocol: 3}")))
        agent.wait(lambda: "branch 615" in json.dumps(agent.report()), "the reason told")
        assert len(healthy(kubelet, SHARED)) == 2


def test_a_daemon_is_there_before_its_shares_are_offered(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    helper.start()
    helper.inject(FailCall("perform", Unsupported("no control program"), times=2))
    with agent_of(node, ONE.format("mps: {replicas: 2}")) as agent:
        offered(kubelet, GPU, 7)
        agent.wait(lambda: "no control program" in (agent.gpu(0)["reason"] or ""), "the failure told")
        assert not ids(kubelet, SHARED)
        offered(kubelet, SHARED, 2)


def test_what_was_set_is_given_back_when_nobody_wants_it_any_more(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, ONE.format("mps: {replicas: 2}")):
        offered(kubelet, SHARED, 2)
        node.write_policy(PLAIN)
        offered(kubelet, GPU, 8)
    assert not daemons(helper)
    assert set(modes(helper)) == {ComputeMode.DEFAULT}


def test_daemons_outlive_the_agent_and_are_given_back_by_the_next_one(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with running(spawn(node, machine=None, policy=native(ONE.format("mps: {replicas: 2}")))) as agent:
        offered(kubelet, SHARED, 2)
        pid = daemons(helper)[0].pid
        agent.kill()
    with running(spawn(node, machine=None, policy=native(ONE.format("mps: {replicas: 2}")))) as agent:
        offered(kubelet, SHARED, 2)
        agent.wait(lambda: not agent.gpu(0)["reason"], "all is as wanted")
        assert daemons(helper)[0].pid == pid, "the daemon was started anew"
        agent.kill()
    with agent_of(node):
        offered(kubelet, GPU, 8)
        wait_for(lambda: not daemons(helper), what="the daemon stopped")
        wait_for(lambda: set(modes(helper)) == {ComputeMode.DEFAULT}, what="the mode given back")


def test_a_compute_mode_that_somebody_else_had_set_is_left_alone(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, ONE.format("mps: {replicas: 2, exclusive-process: false}")):
        offered(kubelet, SHARED, 2)
        assert set(modes(helper)) == {ComputeMode.DEFAULT}
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        assert calls.allocate([ids(kubelet, SHARED)[0]]).envs["PARTAGE_GUARANTEE"] == "advisory"


def test_a_dead_daemon_is_started_again_under_its_shares(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, ONE.format("mps: {replicas: 2}")):
        offered(kubelet, SHARED, 2)
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        share = ids(kubelet, SHARED)[0]
        calls.allocate([share])
        kubelet.pod_resources = held({"default/pod": {"main": {SHARED: [share]}}})
        helper.inject(SetDaemonPhase(0, DaemonPhase.DEAD))
        wait_for(lambda: daemons(helper)[0].phase is DaemonPhase.SERVING, what="it serves again")
        offered(kubelet, SHARED, 2)
        assert not any(
            len(message.devices) < 2
            for message in (registered(kubelet, SHARED).watch or pytest.fail("no stream")).lists
        ), "a share was withdrawn"


def test_a_compute_mode_that_went_with_the_last_client_is_set_again_under_held_shares(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """Without persistence mode it goes with the MPS server, if Partage closes the driver meanwhile."""
    machine = node.root / "machine.json"
    gpu = {"name": "NVIDIA H100 80GB HBM3", "persistence": False}
    machine.write_text(json.dumps({"version": "partage/v1", "kind": "Machine", "gpus": [gpu]}))
    with (
        simulated_helper(node, str(machine)) as helper,
        agent_of(node, ONE.format("mps: {replicas: 2}")) as agent,
    ):
        offered(kubelet, SHARED, 2)
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        share = ids(kubelet, SHARED)[0]
        calls.allocate([share])
        kubelet.pod_resources = held({"default/pod": {"main": {SHARED: [share]}}})
        helper.inject(FailCall("perform", DriverUnavailable("closed"), times=None))
        helper.inject(SetDaemonPhase(0, DaemonPhase.DEAD))
        helper.inject(LastClientLeaves(0))
        assert modes(helper) == [ComputeMode.DEFAULT]
        helper.inject(HealCall("perform"))
        wait_for(lambda: daemons(helper)[0].phase is DaemonPhase.SERVING, what="it serves again")
        wait_for(lambda: modes(helper) == [ComputeMode.EXCLUSIVE_PROCESS], what="the mode is set again")
        agent.wait(lambda: agent.gpu(0)["phase"] == "settled", "settled")
        (row,) = [row for row in agent.report()["resources"] if row["name"] == SHARED]
        assert row["verified"] == "advisory", "the pod's processes were not seen"


def test_a_daemon_without_its_limits_loses_guarantee_and_free_shares_and_is_replaced_when_idle(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, ONE.format("mps: {replicas: 2}")) as agent:
        offered(kubelet, SHARED, 2)
        first = daemons(helper)[0].pid
        helper.inject(Occupy(0, "greedy", UseKind.PROCESS, pid=4711, mps=True))
        helper.inject(SetDaemonPhase(0, DaemonPhase.STARTING))
        offered(kubelet, SHARED, 0)
        agent.wait(lambda: agent.gpu(0)["phase"] == "waiting", "the client is waited for")
        assert "client greedy (pid 4711)" in agent.gpu(0)["reason"]
        (row,) = [row for row in agent.report()["resources"] if row["name"] == SHARED]
        assert (row["promised"], row["verified"]) == ("advisory", "none")
        assert daemons(helper)[0].pid == first, "its client was not ended"
        helper.inject(Vacate(0, "greedy"))
        offered(kubelet, SHARED, 2)
        assert daemons(helper)[0].pid != first


def test_mps_makes_room_for_a_layout_and_comes_back(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, ONE.format("mps: {replicas: 2}")):
        offered(kubelet, SHARED, 2)
        node.write_policy(native(ONE.format("mig: {layout: [3g.40gb, 3g.40gb]}")))
        offered(kubelet, "nvidia.com/mig-3g.40gb", 2)
        assert not daemons(helper)
        node.write_policy(
            native(ONE.format("mig: {layout: all-disabled}"), "{select: rest, mps: {replicas: 2}}")
        )
        offered(kubelet, GPU, 1)
        offered(kubelet, SHARED, 14)
        assert daemons(helper).keys() == set(range(1, 8))


def test_mps_on_mig_devices_has_a_daemon_for_each_and_no_compute_mode(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    entry = ONE.format("mig: {layout: [3g.40gb, 3g.40gb], mps: {replicas: 3}}")
    resource = "nvidia.com/mig-3g.40gb.shared"
    with agent_of(node, entry):
        offered(kubelet, resource, 6)
        devices = {one.device for one in asked(helper, "daemons")}
        assert devices == {share.partition("::")[0] for share in ids(kubelet, resource)}
        calls = registered(kubelet, resource).calls
        assert calls is not None
        share = ids(kubelet, resource)[0]
        answer = calls.allocate([share])
        assert answer.envs["PARTAGE_GUARANTEE"] == "advisory"
        assert [mount.host_path for mount in answer.mounts] == [
            f"{node.run_dir}/mps/{share.partition('::')[0]}/{part}" for part in ("pipe", "shm")
        ]


def test_a_context_in_the_way_is_named_and_waited_for(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    helper.inject(Occupy(0, "python3", UseKind.PROCESS, pid=4711))
    with agent_of(node, ONE.format("mps: {replicas: 2}")) as agent:
        agent.wait(lambda: "python3" in (agent.gpu(0)["reason"] or ""), "the context named")
        assert not ids(kubelet, SHARED)
        node.in_report_file("python3 (pid 4711)")
        said = re.compile(r"! GPU 0: .*python3 \(pid 4711\)")
        wait_for(lambda: said.search(shown(node)), what="and shown, while it is not tried again")
        helper.inject(Vacate(0, "python3"))
        offered(kubelet, SHARED, 2)


def test_time_slices_are_set_and_given_back(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    sliced = ONE.format("time-slicing: {replicas: 2, interval: long}")
    with agent_of(node, sliced):
        offered(kubelet, SHARED, 2)
        wait_for(lambda: slices(helper)[0] is Interval.LONG, what="the slice set")
        node.write_policy(native(ONE.format("time-slicing: {replicas: 2}")))
        wait_for(lambda: slices(helper)[0] is Interval.DEFAULT, what="the slice given back")
        assert len(healthy(kubelet, SHARED)) == 2


def test_a_gpu_that_keeps_its_slice_is_offered_all_the_same_and_says_so(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    gpu = {"name": "NVIDIA L4", "time_slice": "not-supported"}
    path = node.root / "machine.json"
    path.write_text(json.dumps({"version": "partage/v1", "kind": "Machine", "gpus": [gpu]}), encoding="utf-8")
    policy = native(ONE.format("time-slicing: {replicas: 2, interval: short}"))
    with hosted(node, machine=str(path), policy=policy) as agent:
        offered(kubelet, SHARED, 2)
        agent.wait(lambda: "time slice" in (agent.gpu(0)["reason"] or ""), "it is said")


def test_after_a_reboot_daemons_are_there_again(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, ONE.format("mps: {replicas: 2}")):
        offered(kubelet, SHARED, 2)
        helper.inject(Reboot())
        wait_for(lambda: daemons(helper).keys() == {0}, what="the daemon started again")
        wait_for(lambda: modes(helper)[0] is ComputeMode.EXCLUSIVE_PROCESS, what="the mode set again")

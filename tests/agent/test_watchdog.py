"""The watchdog in an agent of its own process: what people and machines hear of it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from partage.agent.kubelet_service import run
from partage.agent.options import AgentOptions, Intervals
from partage.agent.status.status import AgentStatus
from partage.edges.hardware.helper_client import RemoteHardware
from partage.sim.node.faults import HideProcesses
from partage.sim.node.files.load import load_machine
from partage.units import GIB
from tests.agent.harness import (
    Place,
    ids,
    native,
    registered,
    running,
    simulated_helper,
    spawn,
)
from tests.agent.hosted import hosted
from tests.agent.tenants import NOTEBOOK, works, write_logs
from tests.kubelet_script import ScriptedKubelet, held, until

SHARED = "nvidia.com/gpu.shared"
MACHINE = "2xh100-sxm5-80gb"
WARN = native("{select: all, time-slicing: {replicas: 4}}")
WHO = 'container="main",gpu="{gpu}",namespace="team",pod="train"'


@pytest.fixture
def node(node: Place) -> Place:
    """With the names of its containers."""
    write_logs(node.container_logs)
    return node


def pods(**shares: list[str]) -> Any:
    """What PodResources says: pods of one container each, by name."""
    return held({f"team/{name}": {"main": {SHARED: some}} for name, some in shares.items()})


@asynccontextmanager
async def looking_often(node: Place) -> AsyncIterator[AgentStatus]:
    """An agent in this loop, whose watchdog looks every tenth of a second, through the helper's socket."""
    settings = AgentOptions(
        kubelet_dir=node.kubelet_dir,
        pod_resources=node.pod_resources,
        state_dir=node.state_dir,
        run_dir=node.run_dir,
        container_logs=node.container_logs,
        policy=node.policy,
        intervals=Intervals(watch_s=0.1, holders_s=0.1),
    )
    hardware, stop, status = (
        RemoteHardware(node.hardware_socket),
        asyncio.Event(),
        AgentStatus(time.monotonic),
    )
    hardware.start()
    agent = asyncio.create_task(run(settings, hardware, stop=stop, status=status))
    try:
        yield status
    finally:
        stop.set()
        await agent
        await hardware.close()


def test_a_container_over_its_share_is_in_log_report_and_metrics_and_a_doubtful_one_is_left_alone(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """The kubelet names two pods for one share of GPU 1, and has no checkpoint."""
    first, second = load_machine(MACHINE).inventory.gpus
    doubtful = [f"{second.uuid}::0"]
    with simulated_helper(node, MACHINE) as helper:
        helper.inject(works(11, 15 * GIB, mps=False), works(12, 15 * GIB, mps=False))
        helper.inject(works(21, 70 * GIB, NOTEBOOK, gpu=1, mps=False))
        with running(spawn(node, machine=None, policy=WARN)) as agent:
            registered(kubelet, SHARED)
            kubelet.pod_resources = pods(train=[f"{first.uuid}::0"], notebook=doubtful, other=doubtful)
            line = WHO.format(gpu=first.uuid)
            agent.wait(lambda: agent.metric(f"partage_container_over_share{{{line}}}") == 1.0, "over", 20)
            used = "partage_container_memory_used_bytes"
            whole = line.replace(",gpu=", f',device="{first.uuid}",gpu=')
            assert agent.metric(f"{used}{{{whole}}}") == 30.0 * GIB
            section = agent.report()["watch"]
            assert [row["pids"] for row in section["containers"]] == [[11, 12]]
            assert [row["pod"] for row in section["concerns"]] == ["train"]
            assert agent.metric("partage_watchdog_processes_hidden") == 0.0
            agent.wait(lambda: "shares-conflict" in agent.degraded(), "told of the share of two pods", 20)
            assert agent.health() == (200, [])
            said = [one for one in agent.log if "container exceeds its share" in one]
            assert len(said) == 1
            assert re.search(r"team/train.*30 GiB.*19.9 GiB", said[0]), said


def test_an_agent_whose_helper_sees_no_processes_says_so_and_promises_less(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    policy = native("{select: all, mps: {replicas: 4}}")
    with simulated_helper(node, MACHINE) as helper:
        helper.inject(HideProcesses())
        with hosted(node, machine=None, policy=policy) as agent:
            calls = registered(kubelet, SHARED).calls
            assert calls is not None
            answer = calls.allocate(ids(kubelet, SHARED)[:1])
            assert answer.envs["PARTAGE_GUARANTEE"] == "advisory"
            agent.wait(lambda: set(agent.degraded()) == {"processes-hidden", "processes-unseen"}, "told")
            assert agent.health()[0] == 200
            assert agent.metric("partage_watchdog_processes_hidden") == 1.0
            assert agent.report()["watch"]["hidden"] == "simulated: the node's processes cannot be seen"
            assert {row["guarantee"] for row in agent.report()["resources"]} == {"advisory"}


@pytest.mark.parametrize("mps", [True, False])
async def test_scenario_15_four_workers_that_each_keep_to_the_limit_are_ended_together_and_no_neighbour(
    node: Place, kubelet: ScriptedKubelet, mps: bool
) -> None:
    """Through the helper, and counted. A share is 19.9 GiB; MPS limits each process to that."""
    node.write_policy(
        native(f"{{select: all, watch: kill, {'mps' if mps else 'time-slicing'}: {{replicas: 4}}}}")
    )
    gpu = load_machine(MACHINE).inventory.gpus[0].uuid
    with simulated_helper(node, MACHINE) as helper:
        async with looking_often(node) as status:
            await until(lambda: kubelet.last(SHARED) and f"{gpu}::1" in ids(kubelet, SHARED))
            kubelet.pod_resources = pods(train=[f"{gpu}::0"], notebook=[f"{gpu}::1"])
            mine = [works(pid, 12 * GIB, mps=mps) for pid in (11, 12, 13, 14)]
            await asyncio.to_thread(helper.inject, *mine, works(21, 15 * GIB, NOTEBOOK, mps=mps))
            await until(lambda: status.counts.kills)
        assert status.counts.kills == {(gpu, "client" if mps else "process"): 4}
        assert helper.hardware is not None
        assert [use.pid for use in helper.hardware.state.uses] == [21]

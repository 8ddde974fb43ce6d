"""What the agent does when hardware fails: through its real helper protocol, and with time running fast."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from partage.agent.kubelet_service import run
from partage.agent.options import AgentOptions, Intervals
from partage.agent.status.status import AgentStatus
from partage.model.gpu import RecoveryAction
from partage.model.health import HealthState
from partage.model.ids import ShareId
from partage.model.share import DeviceRow
from partage.sim.node.faults import (
    DriverGone,
    DriverLoaded,
    GpuReturns,
    HangCall,
    LoseGpu,
    RaiseXid,
    ResetGpu,
    SetCondition,
)
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.agent.harness import (
    MACHINE,
    Place,
    SimulatedHelper,
    healthy,
    ids,
    native,
    registered,
    simulated_helper,
)
from tests.agent.hosted import hosted
from tests.kubelet_script import ScriptedKubelet, until

SHARED = "nvidia.com/gpu.shared"
GPU = "nvidia.com/gpu"
FOURS = native("{select: all, time-slicing: {replicas: 4}}")


# --- in a process of its own, behind the helper's protocol -------------------------------------


def test_scenario_11_a_gpu_off_the_bus_takes_all_its_shares_and_no_others(
    node: Place, helper: SimulatedHelper, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, machine=None, policy=FOURS) as agent:
        registered(kubelet, SHARED)
        before = ids(kubelet, SHARED)
        helper.inject(RaiseXid(2, 79), LoseGpu(2, "GPU has fallen off the bus"))
        agent.wait(lambda: len(healthy(kubelet, SHARED)) == 28, "the shares of one GPU unhealthy")
        assert ids(kubelet, SHARED) == before
        assert set(before[8:12]).isdisjoint(healthy(kubelet, SHARED))
        agent.wait(lambda: agent.gpu(2).get("health", {}).get("state") == "unhealthy", "told")
        assert agent.health()[0] == 200
        assert "gpu-unhealthy" in agent.degraded()
        uuid = agent.gpu(2)["uuid"]
        assert agent.metric(f'partage_xids_total{{gpu="{uuid}",xid="79"}}') == 1.0
        line = f'partage_gpu_health{{gpu="{uuid}",index="2",state="unhealthy"}}'
        assert agent.metric(line) == 1.0


def test_a_nameless_lost_gpu_is_recognised_by_its_place(
    node: Place, helper: SimulatedHelper, kubelet: ScriptedKubelet
) -> None:
    """NVML cannot read the UUID of a GPU that has fallen off the bus."""
    with hosted(node, machine=None) as agent:
        registered(kubelet, GPU)
        before = ids(kubelet, GPU)
        helper.inject(RaiseXid(None, 79), LoseGpu(5, nameless=True))
        agent.wait(lambda: before[5] not in healthy(kubelet, GPU), "unhealthy", 15)
        assert ids(kubelet, GPU) == before


def test_a_fault_that_the_driver_reports_without_an_xid_is_found(
    node: Place, helper: SimulatedHelper, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, machine=None) as agent:
        registered(kubelet, GPU)
        helper.inject(SetCondition(1, recovery=RecoveryAction.GPU_RESET))
        agent.wait(lambda: len(healthy(kubelet, GPU)) == 7, "found by the poll of conditions", 15)


@pytest.mark.parametrize("xid", [13, 31])
def test_scenario_11_an_applications_own_fault_costs_nothing(
    node: Place, helper: SimulatedHelper, kubelet: ScriptedKubelet, xid: int
) -> None:
    with hosted(node, machine=None) as agent:
        registered(kubelet, GPU)
        uuid = ids(kubelet, GPU)[0]
        helper.inject(RaiseXid(0, xid))
        line = f'partage_xids_total{{gpu="{uuid}",xid="{xid}"}}'
        agent.wait(lambda: agent.metric(line) == 1.0, "counted")
        assert len(healthy(kubelet, GPU)) == 8
        found = kubelet.last(GPU)
        assert found is not None
        assert found.watch is not None
        assert len(found.watch.lists) == 1


def test_a_driver_that_goes_and_comes_back_ends_no_registration(
    node: Place, helper: SimulatedHelper, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, machine=None) as agent:
        calls = registered(kubelet, GPU).calls
        assert calls is not None
        helper.inject(DriverGone())
        agent.wait(lambda: agent.health() == (503, ["driver-missing"]), "told")
        assert calls.allocate(ids(kubelet, GPU)[:1]).envs["PARTAGE_STRATEGY"] == "exclusive"
        helper.inject(DriverLoaded("580.0.0", "13.0"))
        agent.wait(lambda: agent.health() == (200, []), "well again")
        assert agent.report()["node"]["driver"]["version"] == "580.0.0"
        assert len(kubelet.registered) == 1


def test_an_agent_without_a_driver_waits_for_one(node: Place, kubelet: ScriptedKubelet) -> None:
    with simulated_helper(node) as helper:
        helper.inject(DriverGone())
        with hosted(node, machine=None, policy=FOURS) as agent:
            agent.wait(lambda: agent.health() == (503, ["driver-missing"]), "told")
            assert agent.report()["policy"]["state"] == "none"
            assert kubelet.registered == []
            helper.inject(DriverLoaded())
            registered(kubelet, SHARED)
            agent.wait(lambda: agent.report()["policy"]["state"] == "file", "the policy holds")
            agent.wait(lambda: agent.health() == (200, []), "well")


def test_a_helper_that_is_away_costs_no_admission(
    node: Place, helper: SimulatedHelper, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, machine=None) as agent:
        calls = registered(kubelet, GPU).calls
        assert calls is not None
        helper.stop()
        agent.wait(lambda: agent.health() == (503, ["helper-down"]), "told")
        assert agent.get("/livez")[0] == 200
        assert calls.allocate(ids(kubelet, GPU)[:1]).envs
        assert len(healthy(kubelet, GPU)) == 8
        helper.start()
        agent.wait(lambda: agent.health() == (200, []), "well again", 30)


# --- in this process, where a minute lasts a third of a second -----------------------------------

FAST = 200.0


@asynccontextmanager
async def fast_agent(
    node: Place, hardware: SimulatedHardware, **intervals: float
) -> AsyncIterator[AgentStatus]:
    """An agent in this loop whose clock runs fast."""
    status = AgentStatus(lambda: time.monotonic() * FAST)
    settings = AgentOptions(
        kubelet_dir=node.kubelet_dir,
        pod_resources=node.pod_resources,
        state_dir=node.state_dir,
        run_dir=node.run_dir,
        intervals=Intervals(conditions_s=0.05, observe_s=0.5, retry_s=0.05, **intervals),
    )
    stop = asyncio.Event()
    agent = asyncio.create_task(run(settings, hardware, stop=stop, status=status))
    try:
        yield status
    finally:
        stop.set()
        await agent


def rows(kubelet: ScriptedKubelet) -> list[DeviceRow]:
    found = kubelet.last(GPU)
    health = found.watch.health if found and found.watch else {}
    return [DeviceRow(ShareId(share), state == "Healthy") for share, state in health.items()]


async def test_scenario_11_a_gpu_comes_back_after_a_proven_reset_and_its_probation(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    hardware = SimulatedHardware(load_machine(MACHINE))
    async with fast_agent(node, hardware) as status:
        await until(lambda: sum(row.healthy for row in rows(kubelet)) == 8)
        await hardware.inject(RaiseXid(3, 79))
        await hardware.inject(LoseGpu(3))
        await until(lambda: sum(row.healthy for row in rows(kubelet)) == 7)
        await hardware.inject(GpuReturns(3))
        await hardware.inject(ResetGpu(3))
        await status.until(lambda report: report.gpus[3].health.state is HealthState.PROBATION)
        assert sum(row.healthy for row in rows(kubelet)) == 7
        await until(lambda: sum(row.healthy for row in rows(kubelet)) == 8)


async def test_a_gpu_that_answers_again_without_a_reset_stays_away(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    hardware = SimulatedHardware(load_machine(MACHINE))
    async with fast_agent(node, hardware) as status:
        await until(lambda: sum(row.healthy for row in rows(kubelet)) == 8)
        await hardware.inject(RaiseXid(3, 79))
        await hardware.inject(LoseGpu(3))
        await until(lambda: sum(row.healthy for row in rows(kubelet)) == 7)
        await hardware.inject(GpuReturns(3))
        lost = status.report
        assert lost is not None
        later_s = lost.made.clock_s + 120
        await status.until(lambda report: report.made.clock_s > later_s and not report.gpus[3].lost)
        assert sum(row.healthy for row in rows(kubelet)) == 7


async def test_a_call_that_hangs_holds_up_no_admission(node: Place, kubelet: ScriptedKubelet) -> None:
    hardware = SimulatedHardware(load_machine(MACHINE), deadline_s=0.5)
    async with fast_agent(node, hardware):
        await until(lambda: len(rows(kubelet)) == 8)
        calls = kubelet.registered[0].calls
        assert calls is not None
        await hardware.inject(HangCall("observe", times=None))
        await hardware.inject(HangCall("conditions", times=None))
        began = time.monotonic()
        for row in rows(kubelet):
            await asyncio.to_thread(calls.allocate, [row.id])
        assert time.monotonic() - began < 0.5

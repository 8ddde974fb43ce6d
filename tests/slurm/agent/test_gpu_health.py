"""A GPU that answers and is sick: the node is drained for it, and comes back by proof."""

import asyncio

import pytest

from partage.agent.observers.hardware import HardwareObserver, XidLog
from partage.agent.options import Intervals
from partage.model.gpu import RecoveryAction
from partage.model.health import PROBATION_S
from partage.model.xid import XidRules
from partage.sim.node.faults import GpuReturns, LoseGpu, RaiseXid, Reboot, ResetGpu, SetCondition
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.slurm.agent.gpu_health import GpuHealth


class Node:
    """Simulated hardware and its health, on a clock of the test."""

    def __init__(self, machine="2xh100-sxm5-80gb", rules=None, in_hand=()):
        self.hardware = SimulatedHardware(load_machine(machine))
        self.now_s = 1000.0
        self.observer = HardwareObserver(self.hardware, lambda: None, Intervals(), XidLog(lambda: self.now_s))
        self.health = GpuHealth(
            hardware=self.observer,
            clock=lambda: self.now_s,
            ask=lambda: None,
            rules=rules or XidRules(),
            in_hand=lambda: dict.fromkeys(in_hand),
            news=asyncio.Event(),
        )

    async def look(self, after_s=0.0):
        """What is said against the node, once everything is asked."""
        self.now_s += after_s
        await self.observer.observe()
        events = await self.hardware.events(0.01)
        self.observer._note_xids(events.xids)
        await self.observer._ask_conditions()
        self.health.take()
        return self.health.trouble


@pytest.mark.parametrize(
    ("fault", "over", "reason"),
    [
        (RaiseXid(1, 109), ResetGpu(1), "context switch timeout"),
        (
            SetCondition(1, recovery=RecoveryAction.GPU_RESET),
            SetCondition(1, recovery=RecoveryAction.NONE),
            "the driver asks for a reset of the GPU",
        ),
        (
            SetCondition(1, rows_failed=True),
            SetCondition(1, rows_failed=False),
            "a memory row could not be remapped",
        ),
    ],
    ids=["xid", "recovery", "rows"],
)
async def test_a_sick_gpu_is_trouble_until_there_is_proof(fault, over, reason):
    node = Node()
    assert await node.look() == ""
    await node.hardware.inject(fault)
    said = await node.look(5)
    assert said.startswith("GPU 1 is unhealthy: ")
    assert reason in said
    assert await node.look(500) == said
    again = Node()
    again.health.by_gpu, again.observer.boot_id = node.health.by_gpu, node.observer.boot_id
    again.hardware = again.observer.hardware = node.hardware
    again.now_s = node.now_s
    assert await again.look(5) == said  # the next agent knows it
    await node.hardware.inject(over)
    assert (await node.look(5)).startswith("GPU 1 is on probation: ")
    assert await node.look(PROBATION_S + 1) == ""


async def test_a_boot_is_proof():
    node = Node()
    await node.look()
    await node.hardware.inject(RaiseXid(0, 48))
    assert "GPU 0 is unhealthy" in await node.look(5)
    await node.hardware.inject(Reboot())
    assert "GPU 0 is on probation" in await node.look(5)


async def test_what_is_no_sign_of_a_sick_gpu_is_none():
    """An error of an application, rows that wait for a reset; and what the operator has switched off."""
    node = Node()
    await node.look()
    await node.hardware.inject(RaiseXid(0, 31))
    await node.hardware.inject(SetCondition(1, rows_pending=True))
    assert await node.look(5) == ""
    off = Node(rules=XidRules.of_environment({"DP_DISABLE_HEALTHCHECKS": "all"}))
    await off.look()
    await off.hardware.inject(RaiseXid(0, 48))
    assert await off.look(5) == ""


async def test_a_lost_gpu_is_said_once_and_comes_back_on_probation():
    node = Node()
    await node.look()
    await node.hardware.inject(LoseGpu(0, "fallen off"))
    assert await node.look(5) == ""  # who asks says it already
    await node.hardware.inject(GpuReturns(0))
    assert (await node.look(5)).startswith("GPU 0 is on probation: does not answer")


async def test_only_what_changes_asks_for_a_look_at_slurm():
    """The driver is asked every five seconds, slurmctld is not."""
    node, asked = Node(), []
    node.health.ask = lambda: asked.append(node.health.trouble)
    node.observer.ask = node.health.news.set
    task = asyncio.create_task(node.health.run())

    async def answered(count):
        await node.look()
        node.health.news.set()
        while node.health.news.is_set():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asked) <= count
        return len(asked)

    try:
        await node.observer.observe()
        while not asked:
            await asyncio.sleep(0)
        for _ in range(5):
            assert await answered(1) == 1
    finally:
        task.cancel()

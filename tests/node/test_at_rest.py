"""What an agent does while nothing happens, which is nearly always, counted in simulated time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from partage.agent.observers.hardware import MOST_ALIKE
from partage.agent.options import Intervals
from partage.model.gpu import Inventory
from partage.model.gpu_use import Processes
from partage.model.health import GpuCondition
from partage.model.pod import Container, Pod
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import Machine
from tests.agent.harness import place
from tests.node.loops import SimulatedTimeLoop
from tests.node.sharing import SHARED, Sharing
from tests.node.world import World

WATCH_S = 600.0
SLICED = Sharing("sliced", "watch: warn, time-slicing: {replicas: 2}", "time-slicing", (SHARED,) * 2)
TIMES = Intervals()


class CountingLoop(SimulatedTimeLoop):
    """moments: how often everybody slept until a timer was due."""

    def __init__(self) -> None:
        self.moments = 0
        super().__init__()

    def _skip(self, seconds: float) -> None:
        self.moments += seconds > 0.1
        super()._skip(seconds)


class CountingHardware(SimulatedHardware):
    """asked: questions about the whole node, by name."""

    def __init__(self, machine: Machine, clock: Callable[[], float]) -> None:
        super().__init__(machine, clock=clock)
        self.asked = Counter[str]()

    async def observe(self) -> Inventory:
        self.asked["observe"] += 1
        return await super().observe()

    async def conditions(self) -> tuple[GpuCondition, ...]:
        self.asked["conditions"] += 1
        return await super().conditions()

    async def processes(self) -> Processes:
        self.asked["processes"] += 1
        return await super().processes()


def at_rest(*, held: bool) -> tuple[int, int, Counter[str]]:
    """A node of which WATCH_S have passed: in how many moments, how many turns were made, and what the
    hardware was asked.

    held: a pod holds a share meanwhile.
    """
    with place() as somewhere, asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop, machine = runner.get_loop(), load_machine("1xl40s")
        assert isinstance(loop, CountingLoop)
        somewhere.container_logs.mkdir(parents=True, exist_ok=True)
        world = World.of(somewhere, loop, machine, Behaviour(), 0)
        hardware = world.hardware = CountingHardware(machine, loop.time)

        async def rest() -> int:
            world.write_policy([SLICED])
            await world.start_kubelet()
            world.start_agent()
            await asyncio.sleep(30.0)
            if held:
                pod = Pod("default", "train", (Container("main", {SHARED: 1}),))
                await world.admit(pod, bound=True, patience_s=5.0)
                await asyncio.sleep(30.0)
            assert world.agent is not None
            counts = world.agent.status.counts
            before, loop.moments, hardware.asked = counts.turns, 0, Counter()
            await asyncio.sleep(WATCH_S)
            return counts.turns - before

        try:
            return runner.run(rest()), loop.moments, hardware.asked
        finally:
            runner.run(world.close())


@pytest.mark.parametrize(
    ("held", "looks_s"), [(False, TIMES.rest_s), (True, TIMES.watch_s)], ids=["free", "held"]
)
def test_at_rest_all_is_asked_in_the_same_moments_and_the_memory_is_watched_for_holders(
    held: bool, looks_s: float
) -> None:
    turns, moments, asked = at_rest(held=held)
    assert asked == {
        "conditions": WATCH_S / TIMES.conditions_s,
        "processes": WATCH_S / looks_s,
        "observe": WATCH_S / TIMES.observe_s,
    }
    assert moments == WATCH_S / TIMES.conditions_s
    assert turns == WATCH_S / ((MOST_ALIKE + 1) * TIMES.conditions_s)

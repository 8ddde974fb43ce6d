"""Moments that chance seldom finds: what was served and not yet written down when the agent was killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from partage.model.health import PROBATION_S
from partage.model.pod import Container, Pod
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.node.faults import DriverGone, DriverLoaded, RaiseXid, ResetGpu
from partage.sim.node.files.load import load_machine
from tests.agent.harness import place
from tests.examples import some
from tests.node.loops import SimulatedTimeLoop
from tests.node.sharing import HALVES, SHARED, THIRDS
from tests.node.truth import Truth
from tests.node.world import World


@contextmanager
def one_gpu() -> Iterator[tuple[asyncio.Runner, World]]:
    with place() as somewhere, asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedTimeLoop)
        world = World.of(somewhere, loop, load_machine("1xl40s"), Behaviour(), 0)
        try:
            yield runner, world
        finally:
            runner.run(world.close())


def share(name: str) -> Pod:
    return Pod("default", name, (Container("main", {SHARED: 1}),))


async def until(condition: Callable[[], bool], longest_s: float = 60.0) -> None:
    async with asyncio.timeout(longest_s):
        while not condition():
            await asyncio.sleep(0.01)


def test_an_agent_that_is_killed_before_its_state_is_on_disk_mixes_no_strategies() -> None:
    """The disk is slow. A share is given out in thirds; its successor knows of halves only and wants them."""

    async def live(world: World) -> None:
        truth = Truth(world)
        world.write_policy([HALVES])
        await world.start_kubelet()
        world.start_agent()
        await until(lambda: world.kubelet.allocatable() == {SHARED: 2})
        await asyncio.sleep(5.0)
        world.loop.thread_s = 2.0  # type: ignore[attr-defined]
        world.write_policy([THIRDS])
        await until(lambda: world.kubelet.allocatable() == {SHARED: 3})
        await world.admit(share("first"), bound=False, patience_s=1.0)
        await world.kill_agent()
        truth.check()
        world.write_policy([HALVES])
        world.start_agent()
        await asyncio.sleep(10.0)
        assert world.kubelet.allocatable() == {SHARED: 0}, "what is held is given to nobody else"
        for name in ("second", "third"):
            await world.admit(share(name), bound=False, patience_s=1.0)
            truth.check()

    with one_gpu() as (runner, world):
        runner.run(live(world))


@pytest.mark.parametrize("agent", ["runs", "is stopped", "is killed"])
@pytest.mark.parametrize("disk_s", [0.0, 3.0])
def test_a_fault_of_before_a_reset_is_over_with_it_also_where_it_is_told_later(
    agent: str, disk_s: float
) -> None:
    """The driver is gone: nobody hears of the XID before the GPU has been reset and answers again."""

    async def live(world: World) -> None:
        world.write_policy([HALVES])
        await world.start_kubelet()
        world.start_agent()
        await until(lambda: world.kubelet.allocatable() == {SHARED: 2})
        world.loop.thread_s = disk_s  # type: ignore[attr-defined]
        for number in some(range(10), 0):  # XIDs and conditions are asked for at different times
            await asyncio.sleep(5.0 + 0.7 * number)
            await fault_and_reset(world)
            await until(lambda: bool(world.kubelet.allocatable().get(SHARED)), PROBATION_S + 60.0)

    async def fault_and_reset(world: World) -> None:
        await world.fault(DriverGone())
        await asyncio.sleep(4.0)
        if agent == "is stopped":
            await world.stop_agent()
        await world.fault(RaiseXid(0, 79))
        if agent == "is killed":
            await world.kill_agent()
        await asyncio.sleep(5.0)
        await world.fault(ResetGpu(0))
        if agent != "runs":
            world.start_agent()
            await asyncio.sleep(8.0)
        await world.fault(DriverLoaded())
        await asyncio.sleep(10.0)

    with one_gpu() as (runner, world):
        runner.run(live(world))


def test_the_clock_goes_on_for_ever() -> None:
    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        runner.get_loop()._skip(2.0**60)  # type: ignore[attr-defined]
        runner.run(asyncio.sleep(1e6))
        assert runner.get_loop().time() > 2.0**60


def test_a_kubelet_that_starts_again_is_registered_with_at_once() -> None:
    """The kernel tells that its socket is there; a check would come up to a second later."""

    async def live(world: World) -> None:
        world.write_policy([HALVES])
        await world.start_kubelet()
        world.start_agent()
        await until(lambda: world.kubelet.allocatable() == {SHARED: 2})
        for _ in range(5):
            await world.stop_kubelet()
            await asyncio.sleep(1.3)
            began_s = world.loop.time()
            await world.start_kubelet()
            await until(lambda: world.kubelet.allocatable() == {SHARED: 2})
            assert world.loop.time() - began_s < 0.1

    with one_gpu() as (runner, world):
        runner.run(live(world))

"""Moments while a layout is made that chance seldom finds, each once found by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from partage.edges.files.journal import Unfinished, read_journal
from partage.model.layout import LayoutItem
from partage.model.pod import Container, Pod
from partage.model.step import DestroyCompute
from partage.sim.kubelet.behaviour import Behaviour, PodResourcesMode
from partage.sim.node.faults import LoseGpu, SetMig
from partage.sim.node.files.load import load_machine
from tests.agent.harness import place
from tests.node.layouts import LayoutTruth, LayoutWorld, live_devices, made
from tests.node.loops import SimulatedTimeLoop

LARGE = "nvidia.com/mig-3g.40gb"
PART = "nvidia.com/mig-1c.3g.40gb"
BEFORE = made("3g.40gb", "2g.20gb", "1g.10gb")
AFTER = made("3g.40gb", "1g.10gb", "1g.10gb")


def play(life: Callable[[LayoutWorld], Coroutine[Any, Any, None]]) -> None:
    """One GPU with the layout BEFORE, and what is told; then the laws of a node at rest."""

    async def whole(world: LayoutWorld) -> None:
        world.write_policy([BEFORE])
        await world.start_kubelet()
        world.start_agent()
        truth = LayoutTruth(world)
        await truth.settles()
        await life(world)
        await truth.comes_to_rest()

    with place() as somewhere, asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedTimeLoop)
        world = LayoutWorld.of(somewhere, loop, load_machine("1xh100-sxm5-80gb"), Behaviour(), 0)
        try:
            runner.run(whole(world))
        finally:
            runner.run(world.close())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():
            await asyncio.sleep(0.01)


async def in_the_middle(world: LayoutWorld) -> Unfinished:
    """The first step of the way to AFTER is under way, and takes three seconds."""
    world.slow.step_s = 3.0
    world.write_policy([AFTER])
    await until(lambda: bool(under_way(world)))
    await asyncio.sleep(1.0)
    last = unfinished(world)
    assert last is not None
    return last


def unfinished(world: LayoutWorld) -> Unfinished | None:
    last = read_journal(world.place.state_dir)
    return last if isinstance(last, Unfinished) else None


def under_way(world: LayoutWorld) -> str:
    """The step, in words, or nothing."""
    last = unfinished(world)
    return last.open if last else ""


def test_an_agent_that_is_stopped_finishes_the_step_that_is_under_way_and_begins_no_other() -> None:
    async def life(world: LayoutWorld) -> None:
        begun = await in_the_middle(world)
        await world.stop_agent()
        last = unfinished(world)
        assert last is not None
        assert (last.done, last.open) == (begun.done + 1, "")
        world.start_agent()

    play(life)


def test_an_agent_that_is_stopped_while_a_step_hangs_does_not_wait_for_ever() -> None:
    async def life(world: LayoutWorld) -> None:
        begun = await in_the_middle(world)
        world.slow.step_s = 300.0
        await until(lambda: (last := unfinished(world)) is not None and last.done > begun.done)
        await until(lambda: bool(under_way(world)))
        began_s = world.loop.time()
        await world.stop_agent()
        assert world.loop.time() - began_s < 10.0
        world.slow.step_s = 0.0
        await asyncio.sleep(300.0)  # what was begun comes to its end in the driver
        world.start_agent()

    play(life)


def test_a_gpu_that_is_lost_while_it_is_changed_is_offered_no_more() -> None:
    """Nobody can tell its name any more, and so no condition names it either."""

    async def life(world: LayoutWorld) -> None:
        await in_the_middle(world)
        assert world.kubelet.allocatable()[LARGE] == 1
        await world.fault(LoseGpu(0, nameless=True))
        await asyncio.sleep(30.0)
        assert not any(world.kubelet.allocatable().values())
        world.slow.step_s = 0.0
        await world.heal()
        world.sick.add(0)
        await world.reset_the_sick()

    play(life)


def test_a_change_that_was_cut_off_behind_its_last_step_is_concluded_by_the_next_agent() -> None:
    async def life(world: LayoutWorld) -> None:
        await in_the_middle(world)
        world.slow.step_s = 0.5
        await until(lambda: "verify" in under_way(world))
        await world.kill_agent()
        assert unfinished(world) is not None
        world.start_agent()
        await until(lambda: read_journal(world.place.state_dir) is None)

    play(life)


def test_what_a_killed_agents_last_step_still_destroys_is_given_to_nobody() -> None:
    """Killed in the middle of a destroying step, and the next policy wants that very device again."""

    async def life(world: LayoutWorld) -> None:
        begun = await in_the_middle(world)
        assert "destroy" in begun.open
        await world.kill_agent()
        world.write_policy([BEFORE])
        world.start_agent()
        await until(lambda: world.kubelet.allocatable().get("nvidia.com/mig-2g.20gb", 0) > 0)
        pod = Pod("default", "early", (Container("main", {"nvidia.com/mig-2g.20gb": 1}),))
        await world.admit(pod, bound=False, patience_s=20.0)
        await asyncio.sleep(5.0)  # what was begun comes to its end in the driver
        assert world.held()
        assert all(one.share[1] in live_devices(world.hardware.state) for one in world.held())

    play(life)


def test_a_device_that_died_under_its_pod_is_given_to_nobody_else() -> None:
    """PodResources goes on naming the pod after its end: its id stays listed as long."""

    async def life(world: LayoutWorld) -> None:
        pod = Pod("default", "train", (Container("main", {LARGE: 1}),))
        await world.admit(pod, bound=False, patience_s=5.0)
        await world.fault(SetMig(0, (LayoutItem.parse("1g.10gb"),)))
        await asyncio.sleep(5.0)
        world.behave(pod_resources=PodResourcesMode.REFUSES)
        await world.end(pod)
        await asyncio.sleep(5.0)
        assert world.kubelet.allocatable()[LARGE] == 0
        world.behave(pod_resources=PodResourcesMode.SERVES)

    play(life)


def test_a_gpu_instance_without_room_side_by_side_is_made_anew() -> None:
    """Of three compute instances somebody left the middle one: none of two slices finds room beside it."""

    async def life(world: LayoutWorld) -> None:
        world.write_policy([made(*["1c.3g.40gb"] * 3)])
        await until(lambda: world.kubelet.allocatable().get(PART) == 3)
        await world.stop_agent()
        (gpu,) = world.hardware.state.gpus.values()
        for one in gpu.mig_devices:
            if one.ci_id != 1:
                place = (gpu.uuid, "3g.40gb", one.known_placement, one.profile)
                await world.hardware.perform(DestroyCompute(*place, one.gi_id, one.ci_id, one.uuid))
        world.write_policy([made("1c.3g.40gb", "2c.3g.40gb")])
        world.start_agent()

    play(life)

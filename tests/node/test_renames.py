"""A policy that gives its resource another name again and again leaves nothing of the old names behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from partage.agent.endpoints.plugin_set import RETIRE_S
from partage.edges.kubelet.sockets import plain_name
from partage.model.pod import Container, Pod
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.node.files.load import load_machine
from tests.agent.harness import native, place
from tests.examples import examples
from tests.node.loops import SimulatedTimeLoop
from tests.node.world import World

RENAMES = examples(60)
TRAIN = Pod("default", "train", (Container("main", {"nvidia.com/first": 1}),))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def plugins(world: World) -> set[str]:
    return {plain_name(path.name) for path in world.place.kubelet_dir.glob("nvidia-*.sock")}


async def rename(world: World, name: str) -> None:
    world._write(native(f"{{select: all, name: {name}, exclusive: {{}}}}"))
    if world.agent is None:
        world.start_agent()
    async with asyncio.timeout(60.0):
        while not world.kubelet.allocatable().get(f"nvidia.com/{name}"):
            await asyncio.sleep(0.1)


async def live(world: World) -> None:
    await world.start_kubelet()
    await rename(world, "first")
    await world.admit(TRAIN, bound=False, patience_s=5.0)
    before = descriptors()
    for number in range(RENAMES):
        await rename(world, f"name{number}")
    last = f"nvidia-name{RENAMES - 1}.sock"
    await asyncio.sleep(2 * RETIRE_S)
    assert plugins(world) == {"nvidia-first.sock", last}, "a share of the first one is held"
    assert descriptors() <= before + 4
    await world.end(TRAIN)
    await asyncio.sleep(4 * RETIRE_S)
    assert plugins(world) == {last}
    await rename(world, "first")
    await world.stop_agent()


def test_names_that_nobody_uses_any_more_are_dropped() -> None:
    with place() as somewhere, asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedTimeLoop)
        world = World.of(somewhere, loop, load_machine("2xl40s"), Behaviour(), 0)
        try:
            runner.run(live(world))
        finally:
            runner.run(world.close())

"""The same laws with real processes, and real time: agent and helper are killed at any moment.

Each run follows from its number; ``PARTAGE_EXAMPLES`` says how many there are (``make soak``).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import pytest

from partage.model.pod import Container, Pod
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.node.files.load import load_machine
from tests.agent.harness import AgentProcess, place, spawn
from tests.node.loops import Loop
from tests.node.sharing import SHARINGS, WRONG_POLICIES
from tests.node.truth import Truth
from tests.node.world import World

RUNS = max(3, int(os.environ.get("PARTAGE_EXAMPLES", "25")) // 20)
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.real) for seed in range(1, RUNS))]
STEPS = 12
MACHINE = "3xl40s"
SETTLES_WITHIN_S = 180.0
"""Of real time: a share that nobody names counts as held for two minutes."""


@dataclass(slots=True)
class ProcessWorld(World):
    """A world whose agent is a process, with a helper of its own."""

    process: AgentProcess | None = None

    def start_agent(self) -> None:
        assert self.process is None
        self.note("agent starts")
        self.may_refuse = not self.policy_is_good
        self.process = spawn(self.place, f"--policy={self.place.policy}", machine=MACHINE, http=False)

    async def stop_agent(self) -> None:
        self.note("agent stops")
        await self._end(lambda process: process.stop())

    async def kill_agent(self) -> None:
        self.note("agent killed")
        await self._end(lambda process: process.kill())

    async def _end(self, how: Callable[[AgentProcess], object]) -> None:
        assert self.process is not None
        process, self.process = self.process, None
        await asyncio.to_thread(how, process)

    def kill_helper(self) -> None:
        assert self.process is not None
        self.note("helper killed")
        helper = self.process.helper_pid()
        if helper is not None:
            with suppress(ProcessLookupError):  # it may have ended by itself
                os.kill(helper, signal.SIGKILL)

    def notice_agent(self) -> None:
        if self.process is None or self.process.process.poll() is None:
            return
        process, self.process = self.process, None
        code = process.finish()
        assert code in (2, 3), "".join(process.log)
        assert self.may_refuse, "".join(process.log)

    async def close(self) -> None:
        if self.process is not None:
            await self.kill_agent()
        await World.close(self)


class Run:
    """One node's life, by one seed."""

    def __init__(self, world: ProcessWorld, seed: int) -> None:
        self._world = world
        self._random = Random(seed)
        self._names = iter(range(1000))
        self._truth = Truth(world, SETTLES_WITHIN_S)

    async def live(self) -> None:
        """Begin, suffer, come to rest."""
        world = self._world
        self._new_policy()
        await world.start_kubelet()
        world.start_agent()
        for _ in range(STEPS):
            await self._random.choice(self._possible())()
            await world.passes(self._random.choice([0.0, 0.02, 0.2, 0.6, 1.3]))
            self._truth.check()
        await self._faults_stop()
        await self._truth.settles()
        await self._truth.comes_to_rest()
        await world.stop_agent()
        self._truth.check()

    def _possible(self) -> list[Callable[[], Awaitable[None]]]:
        world = self._world
        steps = [self._pods_come, self._pods_come, self._policy_changes, self._kubelet_restarts]
        steps += [self._pod_ends, self._container_crashes] if world.live() else []
        if world.process is None:
            return [*steps, self._agent_starts, self._agent_starts]
        return [*steps, self._helper_dies, self._agent_dies, self._agent_is_replaced]

    async def _pods_come(self) -> None:
        resources = sorted(name for name, count in self._world.kubelet.allocatable().items() if count)
        resource = self._random.choice(resources or ["nvidia.com/gpu"])
        inits = (Container("init", {resource: 1}, "init"),) if self._random.random() < 0.4 else ()
        main = {resource: 1} if not inits or self._random.random() < 0.5 else {}
        for _ in range(self._random.randint(1, 3)):
            pod = Pod("default", f"pod-{next(self._names)}", (*inits, Container("main", main)))
            await self._world.admit(pod, bound=False, patience_s=self._random.choice([0.0, 1.0]))

    async def _pod_ends(self) -> None:
        await self._world.end(self._random.choice(self._world.live()).pod)

    async def _container_crashes(self) -> None:
        pod = self._random.choice(self._world.live()).pod
        if pod.key not in self._world.admissions:
            await self._world.restart_container(pod, "main")

    async def _policy_changes(self) -> None:
        if self._random.random() < 0.2:
            self._world.write_wrong_policy(self._random.choice(WRONG_POLICIES))
        else:
            self._new_policy()

    def _new_policy(self) -> None:
        plan = self._random.choices(SHARINGS, k=3)
        self._world.write_policy(plan, single=self._random.random() < 0.5)

    async def _kubelet_restarts(self) -> None:
        await self._world.stop_kubelet()
        await self._world.passes(self._random.choice([0.0, 0.3]))
        await self._world.start_kubelet()

    async def _agent_starts(self) -> None:
        self._world.start_agent()

    async def _agent_dies(self) -> None:
        await self._world.kill_agent()

    async def _agent_is_replaced(self) -> None:
        await self._world.kill_agent()
        if self._random.random() < 0.5:
            self._new_policy()
        self._world.start_agent()

    async def _helper_dies(self) -> None:
        self._world.kill_helper()

    async def _faults_stop(self) -> None:
        world = self._world
        world.note("faults stop")
        await world.admitted()
        if not world.policy_is_good:
            world.write_policy(world.plan, single=world.single)
        for _ in range(2):  # an agent that began with a wrong policy may have to end first
            world.notice_agent()
            if world.process is None:
                world.start_agent()
            await asyncio.sleep(1.5)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
def test_killed_agents_and_helpers_leave_the_node_true_to_its_laws(seed: int) -> None:
    with place() as somewhere, asyncio.Runner(loop_factory=Loop) as runner:
        behaviour = Behaviour(unlisted_s=0.2, start_delay_s=0.2, grace_s=5.0)
        loop = runner.get_loop()
        assert isinstance(loop, Loop)
        world = ProcessWorld.of(somewhere, loop, load_machine(MACHINE), behaviour, seed)
        try:
            runner.run(Run(world, seed).live())
        except AssertionError as error:
            log = world.process.log if world.process else []
            raise AssertionError("\n".join([str(error), *world.log, *log])) from error
        finally:
            runner.run(world.close())

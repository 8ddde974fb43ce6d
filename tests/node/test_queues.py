"""Laws of a node with a queue: a pod that waits takes a freed id before anybody can look.

A controller is behind each pod, as behind those of a Deployment: for one that ends another one comes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from partage.model.ids import ContainerId
from partage.model.pod import Container, Pod
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.kubelet.pods import PodPhase, PodStatus
from partage.sim.node.faults import Occupy, Vacate
from partage.sim.node.files.load import load_machine
from tests.agent.harness import place
from tests.examples import examples
from tests.node.loops import SimulatedTimeLoop
from tests.node.sharing import EXCLUSIVE, HALVES, SHARINGS, THIRDS, Sharing
from tests.node.truth import Truth
from tests.node.world import World

EXAMPLES = int(os.environ.get("PARTAGE_EXAMPLES", examples(25)))
HOW = settings(
    max_examples=EXAMPLES,
    print_blob=True,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a run is long, and told in its log
)
GPUS = 3
NOTICED_S = 5.0
"""A policy that was written is in force, and the kubelet has its lists."""
SETTLED_S = 60.0
"""A GPU that may change has changed."""

SHARING = st.sampled_from(SHARINGS)
SEEDS = st.integers(0, 99)
BEHAVIOURS = st.builds(
    Behaviour,
    unlisted_s=st.sampled_from([0.0, 0.5]),
    start_delay_s=st.sampled_from([0.0, 0.3]),
    list_delay_s=st.sampled_from([0.0, 0.4]),
    sync_delay_s=st.sampled_from([0.5, 5.0]),
    always_asks_preference=st.booleans(),
)


class Node:
    """A world with a controller. names: of the pods that are still to come."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.truth = Truth(world)
        self._names = (f"pod-{number}" for number in count())

    async def begin(self, *plan: Sharing) -> None:
        self.world.write_policy(plan)
        await self.world.start_kubelet()
        self.world.start_agent()
        await asyncio.sleep(NOTICED_S)

    def pod(self, resource: str, *, init: bool = False) -> Pod:
        inits = (Container("init", {resource: 1}, "init"),) if init else ()
        return Pod("default", next(self._names), (*inits, Container("main", {resource: 1})))

    async def fill(self, *, init: bool = False) -> list[PodStatus]:
        """Every share is held."""
        for resource, number in self.world.kubelet.allocatable().items():
            for _ in range(number):
                await self.world.admit(self.pod(resource, init=init), bound=False, patience_s=SETTLED_S)
        self.truth.check()
        assert {one.share for one in self.world.held()} == set(self.world.offered())
        return self.world.live()

    def queue(self, resource: str, length: int) -> None:
        for _ in range(length):
            self.world.wait(self.pod(resource))

    async def end(self, status: PodStatus) -> None:
        """And its controller makes another one, which waits as all others."""
        await self.world.end(status.pod)
        self.queue(next(iter(status.pod.totals)), 1)

    async def passes(self, seconds: float) -> None:
        """The laws hold all the time."""
        for _ in range(10):
            await asyncio.sleep(seconds / 10)
            self.truth.check()

    def gpus_of(self, status: PodStatus) -> set[str]:
        return {one.gpu for one in self.world.held() if one.pod == status.pod.key}

    def waiting_gpus(self) -> set[str]:
        agent = self.world.agent
        assert agent is not None
        assert agent.status.report is not None
        return {one.uuid for one in agent.status.report.gpus if one.waits}


@contextmanager
def node(
    behaviour: Behaviour | None = None, seed: int = 0, gpus: int = GPUS
) -> Iterator[tuple[asyncio.Runner, Node]]:
    with place() as somewhere, asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedTimeLoop)
        world = World.of(somewhere, loop, load_machine(f"{gpus}xl40s"), behaviour or Behaviour(), seed)
        try:
            runner.run(asyncio.sleep(0))
            yield runner, Node(world)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), "what happened:", *world.log])) from error
        finally:
            runner.run(world.close())


@HOW
@given(BEHAVIOURS, SEEDS, SHARING, SHARING, SHARING, st.integers(1, 6), st.sampled_from([0.0, 0.4, 3.0]))
def test_behind_a_full_queue_a_gpu_changes_after_one_end_of_each_holder(
    behaviour: Behaviour,
    seed: int,
    before: Sharing,
    after: Sharing,
    beside: Sharing,
    length: int,
    pause_s: float,
) -> None:
    async def live(node: Node) -> None:
        await node.begin(before, before, beside)
        holders = await node.fill()
        for resource in set(before.resources) | set(after.resources):
            node.queue(resource, length)
        first = node.world.hardware.state.gpus[0].uuid
        node.world.write_policy([after, before, beside])
        await node.passes(NOTICED_S)
        for status in [one for one in holders if first in node.gpus_of(one)]:
            await node.end(status)
            await node.passes(pause_s)
        await node.passes(SETTLED_S)
        assert node.waiting_gpus() == set()
        rows = node.world.offered().items()
        offered = {share for share, healthy in rows if healthy and node.world.gpu(share) == first}
        assert offered == set(after.shares(node.world.hardware.state.gpus[0]))

    with node(behaviour, seed) as (runner, one):
        runner.run(live(one))


@HOW
@given(BEHAVIOURS, SEEDS, st.sampled_from([HALVES, THIRDS]), st.booleans())
def test_a_gpu_that_waits_blocks_no_free_share_of_another_one(
    behaviour: Behaviour, seed: int, before: Sharing, ends: bool
) -> None:
    """The scheduler counts holders against what is healthy, be they where they may."""

    async def live(node: Node) -> None:
        await node.begin(before, before, EXCLUSIVE)
        (resource,) = set(before.resources)
        await node.world.admit(node.pod(resource), bound=False, patience_s=SETTLED_S)
        (held,) = node.world.held()
        number = next(n for n, gpu in node.world.hardware.state.gpus.items() if gpu.uuid == held.gpu)
        plan = [before, before, EXCLUSIVE]
        plan[number] = EXCLUSIVE
        node.world.write_policy(plan)
        await node.passes(NOTICED_S)
        assert node.waiting_gpus() == {held.gpu}
        for _ in range(before.replicas):
            await node.world.admit(node.pod(resource), bound=False, patience_s=SETTLED_S)
            await node.passes(NOTICED_S)
        assert [status.phase for status in node.world.live()] == [PodPhase.RUNNING] * (before.replicas + 1)
        if ends:
            node.queue(resource, 2)
            await node.world.end(next(one.pod for one in node.world.live() if one.pod.key == held.pod))
            await node.passes(SETTLED_S)
            assert node.waiting_gpus() == set()

    with node(behaviour, seed) as (runner, one):
        runner.run(live(one))


@HOW
@given(BEHAVIOURS, SEEDS, SHARING, SHARING, st.booleans(), st.sampled_from([0.0, 0.4, 12.0]))
def test_a_kubelet_that_restarts_fails_no_pod_for_what_must_change(
    behaviour: Behaviour, seed: int, before: Sharing, after: Sharing, crashed: bool, away_s: float
) -> None:
    """Not even one whose init container has ended, or whose container does not run at that moment."""

    async def live(node: Node) -> None:
        await node.begin(before, before, before)
        holders = await node.fill(init=True)
        node.queue(before.resources[0], 2)
        node.world.write_policy([after, before, before])
        await node.passes(NOTICED_S)
        await node.world.stop_kubelet()
        await node.world.passes(away_s)
        if crashed:
            for status in holders:
                node.world.kubelet.crash(status.pod, "main")
        await node.world.start_kubelet()
        await node.passes(behaviour.sync_delay_s + NOTICED_S)
        assert [(one.pod.key, one.message) for one in node.world.kubelet.pods() if not one.holds] == []

    with node(behaviour, seed) as (runner, one):
        runner.run(live(one))


@HOW
@given(
    SEEDS,
    SHARING,
    SHARING,
    st.sampled_from([0.0, 0.4, 3.0]),
    st.sampled_from([0.0, 0.4, 3.0]),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
    st.booleans(),
)
def test_no_id_leaves_the_list_under_an_allocate(
    seed: int,
    before: Sharing,
    after: Sharing,
    allocate_s: float,
    answer_s: float,
    watch_s: float,
    stands_still: bool,
    dies: bool,
) -> None:
    """A kubelet would crash. Answers and lists may be late, each by itself, and the agent another one.

    What an agent answers just before it is killed only the kubelet knows: it takes that over at once, or
    stands still as a whole.
    """
    answer_s = min(answer_s, 0.4) if dies else answer_s
    behaviour = Behaviour(allocate_delay_s=allocate_s, answer_delay_s=answer_s, watch_delay_s=watch_s)

    async def live(node: Node) -> None:
        await node.begin(before, before)
        for resource in set(before.resources):
            await node.world.admit(node.pod(resource), bound=False, patience_s=0.05)
        if stands_still:
            node.world.kubelet.stand_still()
        if dies:
            await node.world.kill_agent()
        node.world.write_policy([after, after])
        if dies:
            node.world.start_agent()
        await node.passes(NOTICED_S)
        node.world.kubelet.go_on()
        await node.passes(SETTLED_S)
        assert node.world.kubelet.panics == ()

    with node(behaviour, seed, gpus=2) as (runner, one):
        runner.run(live(one))


@HOW
@given(BEHAVIOURS, SEEDS, SHARING, st.sampled_from([0.0, 1.5, 30.0]), st.booleans())
def test_no_share_is_given_while_a_process_of_its_last_holder_runs(
    behaviour: Behaviour, seed: int, sharing: Sharing, lives_s: float, same_name: bool
) -> None:
    """Its pod was deleted by force: kubelet and API server know nothing of it any more."""

    async def live(node: Node) -> None:
        world = node.world
        await node.begin(sharing)
        (status, *_) = await node.fill()
        ((share, gpu),) = ((one.share, one.gpu) for one in world.held() if one.pod == status.pod.key)
        await world.passes(NOTICED_S)
        number = next(n for n, one in world.hardware.state.gpus.items() if one.uuid == gpu)
        await world.hardware.inject(
            Occupy(number, "left", pid=77, container=ContainerId("c" * 64), pod=status.uid)
        )
        resource = share[0]
        left = await world.delete_by_force(status.pod)
        world.wait(status.pod if same_name else node.pod(resource))
        for _ in range(20):
            await asyncio.sleep(lives_s / 20)
            taken = {one.share: one.pod for one in world.held()}
            assert share not in taken, f"{taken[share]} has {share}, and a process of {left.uid} runs"
            world.notice_admissions()
        world.kubelet.processes_end(left)
        await world.hardware.inject(Vacate(number, "left"))
        await node.passes(SETTLED_S)
        world.wait(node.pod(resource))
        await node.passes(SETTLED_S)
        assert share in {one.share for one in world.held()}

    with node(behaviour, seed, gpus=1) as (runner, one):
        runner.run(live(one))
